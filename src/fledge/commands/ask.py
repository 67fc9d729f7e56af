"""One question on the command line: the answer as it is generated, then the effect of speculation."""

from __future__ import annotations

from fledge.base.console import plural, say
from fledge.base.errors import EngineError
from fledge.engine import CompletionStats, Engine, SamplingParams
from fledge.released import load_pair
from fledge.target import TargetOptions


def answer(
    question: str,
    *,
    target: TargetOptions,
    head: str | None,
    plain: bool,
    max_tokens: int,
    temperature: float,
    seed: int | None,
) -> None:
    """Stream the answer; `head` is a folder, or None for the shipped one, if one fits; `plain`: without a head."""
    try:
        question.encode()  # bytes that aren't UTF-8 arrive as lone surrogates
    except UnicodeEncodeError as error:
        raise EngineError(
            f"character {error.start + 1} of the question isn't UTF-8: save the text as UTF-8, or convert it with iconv"
        ) from error
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    loaded, drafts = load_pair(target, head, plain=plain)
    prompt = loaded.chat.prompt_ids([{"role": "user", "content": question}])
    context = min(len(prompt) + max_tokens + 1, loaded.config.max_position_embeddings)
    engine = Engine(loaded, drafts, max_batch=1, max_context=context)
    for piece in engine.stream_sync(prompt, params):
        print(piece.text, end="", flush=True)  # a console would expand tabs
        if piece.completion is not None:
            print()
            say(_stats_line(piece.completion.stats, speculative=drafts is not None), dim=True)


def _stats_line(stats: CompletionStats, *, speculative: bool) -> str:
    tau = f"tau {stats.tau:.2f}, " if speculative else "plain decode, "
    times = f"{stats.tpot_ms:.1f} ms per token, first token after {stats.ttft_ms:.0f} ms"
    return f"[{plural(stats.tokens, 'token')}, {tau}{times}]"
