"""The `respond` stage: the target answers every prompt, through one engine that is kept full."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest

from fledge.base import storage
from fledge.base.console import plural
from fledge.base.errors import DataError
from fledge.base.fingerprint import Fingerprint, claim_backend, make_fingerprint
from fledge.base.storage import Manifest
from fledge.data.conversations import (
    Answered,
    ConversationStatistics,
    ConversationWriter,
    conversation_rejects,
    conversation_statistics,
)
from fledge.data.dialogue import AnswerScan, DialogueJobs
from fledge.data.generation import TokenRate, run_in_order
from fledge.data.options import Progress, RespondOptions, silent
from fledge.data.privacy import PrivacyOptions, require_privacy_extra, write_audit
from fledge.data.privacy.filter import answer_scan
from fledge.data.prompt_store import TrainingPrompt, read_prompts
from fledge.data.prompts import backend_name, privacy_parts, target_parts
from fledge.data.ray_respond import AnswerActors
from fledge.data.served import AnswerServer, run_served
from fledge.data.split import on_both_sides
from fledge.data.turns import encode_plain
from fledge.data.waiting import Waiting
from fledge.engine import Engine
from fledge.target import Target

FORMAT = 3
_MEASURED = 64  # prompts, those with the most characters
_TURN_ROOM = 32  # tokens of a template around a turn and its answer
_TEMPLATE_ROOM = 512  # tokens of a template's own words: a default system prompt, how to call tools


@dataclass(frozen=True)
class RespondSummary:
    """Summary of a folder of conversations."""

    prompts: int
    skipped: int  # prompts without a conversation
    rejected: dict[str, int]  # reason -> prompts without one, or that ended before their last turn
    statistics: ConversationStatistics


def respond(
    target: Target,
    engine: Engine | AnswerServer | AnswerActors,
    prompts_url: str,
    options: RespondOptions,
    output_url: str,
    progress: Progress = silent,
    *,
    privacy: PrivacyOptions | None = None,
    scan: AnswerScan | None = None,
) -> RespondSummary:
    """Answer all prompts of one folder into another, or resume an earlier call.

    A shard holds the conversations of `shard_size` consecutive prompts. It is written when the last of them is done;
    meanwhile the engine works on later shards, whose answers are saved as well.

    Args:
        engine: this process' own, a server, or actors on Ray.
        privacy: options of the privacy filter that scans each answer before it is stored; None: no filter.
        scan: replaces that filter.
    """
    given = options
    options = fit_to_prompts(target, prompts_url, options, engine if isinstance(engine, Engine) else None)
    if isinstance(engine, AnswerActors):
        if options.server is None:
            check_context(target.config.max_position_embeddings, options)
        if privacy is not None and privacy.answers:
            require_privacy_extra()
    else:
        if isinstance(engine, Engine):
            check_context(engine.max_context, options)
        scan = scan or answer_scan(privacy)
    prompts = Manifest.load(prompts_url).records
    respond_fingerprint(target, prompts_url, given, privacy).claim(output_url)
    writer = ConversationWriter(output_url)
    done = min(writer.shards * options.shard_size, prompts)
    if isinstance(engine, Engine) and done < prompts:
        claim_backend(output_url, backend_name(target))
    waiting = Waiting(output_url, done)
    progress(done, prompts, "")
    rate = TokenRate()
    shard: list[Answered] = []
    if isinstance(engine, AnswerActors):
        shards = range(writer.shards, -(-prompts // options.shard_size))
        results = engine.answers(prompts_url, options, privacy, shards)
    else:
        jobs = DialogueJobs(target, options, scan, target.config.vocab_size)
        unanswered = enumerate(read_prompts(prompts_url, skip=done), start=done)
        pending = (waiting.job(number, jobs.job(prompt)) for number, prompt in unanswered)
        results = (
            run_in_order(engine, pending, rate)
            if isinstance(engine, Engine)
            else run_served(engine, pending, rate)
        )
    try:
        for answered in results:
            done += 1
            shard.append(answered)
            if done % options.shard_size == 0 or done == prompts:
                write_audit(output_url, writer.shards, *(answered.audit for answered in shard))
                writer.write(on_both_sides(shard, output_url, options.heldout) if done == prompts else shard)
                waiting.forget(done)
                shard = []
            speed = f"{rate.per_second():,.0f} tokens/s"
            actors = plural(engine.ray.actors, "actor") if isinstance(engine, AnswerActors) else ""
            progress(done, prompts, actors or speed)
    finally:
        results.close()
        waiting.save()
    return respond_summary(prompts, output_url)


def fit_to_prompts(
    target: Target, prompts_url: str, options: RespondOptions, engine: Engine | None = None
) -> RespondOptions:
    """The options, with room for the longest of the prompts unless they set a limit.

    The prompts with the most characters are measured in tokens, with all their turns and answers.
    """
    if options.max_prompt_tokens is not None or not Manifest.load(prompts_url).shards:
        return options
    longest = nlargest(_MEASURED, read_prompts(prompts_url), key=_characters)
    needed = max(
        len(encode_plain(target, "\n".join((*prompt.turns, *prompt.context, prompt.results))))
        + len(prompt.turns) * (options.max_new_tokens + _TURN_ROOM)
        for prompt in longest
    )
    limit = target.config.max_position_embeddings
    return options.for_prompts(
        needed + _TEMPLATE_ROOM, limit if engine is None else min(limit, engine.max_context)
    )


def _characters(prompt: TrainingPrompt) -> int:
    return sum(map(len, (*prompt.turns, *prompt.context, prompt.results)))


def respond_summary(prompts: int, output_url: str) -> RespondSummary:
    """Summarise a finished folder.

    Raises:
        DataError: it has no conversation.
    """
    rejected = conversation_rejects(output_url)
    if not Manifest.load(output_url).records:
        if set(rejected) == {"too_long"}:
            raise DataError("every prompt is too long; raise respond.max_prompt_tokens")
        reasons = ", ".join(f"{number} {reason}" for reason, number in rejected.items())
        raise DataError(
            f"no prompt got a usable answer ({reasons}); check the target or the server, delete {output_url} and "
            "run again"
        )
    statistics = conversation_statistics(output_url)
    return RespondSummary(prompts, prompts - statistics.prompts, rejected, statistics)


def respond_fingerprint(
    target: Target, prompts_url: str, options: RespondOptions, privacy: PrivacyOptions | None = None
) -> Fingerprint:
    """Fingerprint of the stage's inputs. `privacy`: the filter's options, if there is one."""
    prompts = Manifest.load(prompts_url)
    if not prompts.records:
        raise DataError(f"no prompts in {prompts_url}; run `fledge prompts` first or name another folder")
    shards = "".join(shard.sha256 for shard in prompts.shards)
    parts = {
        "stage": "respond",
        "format": FORMAT,
        "target": target_parts(target),
        "respond": options.model_dump(mode="json", exclude={"max_batch", "server"})
        | {"server_model": options.server.model if options.server else None},
        "prompts": storage.sha256(shards.encode()),
    }
    if privacy is not None and privacy.answers:
        parts["privacy"] = privacy_parts(privacy)
    return make_fingerprint(parts)


def check_context(available: int, options: RespondOptions) -> None:
    """Raise if the longest request doesn't fit the engine's context."""
    if options.longest_request > available:
        second = options.second_turn and options.user_max_tokens > options.max_new_tokens
        raise DataError(
            f"answers may need {options.longest_request} tokens of context, but the engine has {available}; "
            f"lower respond.max_prompt_tokens or respond.{'user_max_tokens' if second else 'max_new_tokens'}"
        )
