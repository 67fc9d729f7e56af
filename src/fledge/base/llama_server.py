"""llama-server's own completions, which give generated ids: its OpenAI route gives text alone.

POST /completion  {"prompt": [ids], "return_tokens": true}  ->  {"content", "tokens", "stop_type", "tokens_predicted"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FINISHED = {"limit": "length", "eos": "stop", "word": "stop"}  # others are refused by their name
EAGLE = "draft-eagle3"  # its name of this kind of drafter
CHAIN = 2  # tokens that it is told to draft in the commands that fledge prints
ROUTE = "/completion"
OWNER = "llamacpp"  # of the models that llama-server lists
_SEEDS = 2**32 - 1  # that number itself asks for a random one


def command(target: str, head: str) -> str:
    """The command that serves `target` with a draft head, both GGUF files."""
    return f"llama-server -m {target} -md {head} --spec-type {EAGLE} --spec-draft-n-max {CHAIN}"


def completion_body(
    prompt_ids: Sequence[int],
    max_tokens: int,
    temperature: float,
    top_p: float = 1.0,
    seed: int | None = None,
) -> dict[str, Any]:
    """A request of these parameters' distribution, whatever the server was started with; temperature 0 is greedy."""
    seeded = {} if seed is None else {"seed": seed % _SEEDS}
    return {
        "prompt": list(prompt_ids),
        "n_predict": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "samplers": ["temperature", "top_p"],  # and no others, in fledge's order
        "dynatemp_range": 0,
        "mirostat": 0,
        "return_tokens": True,
        **seeded,
    }


def as_openai(reply: Any) -> Any:
    """The reply as an OpenAI server gives it; as it came if it is none of llama-server's."""
    if not isinstance(reply, Mapping) or "stop_type" not in reply:
        return reply
    choice = {
        "text": reply.get("content"),
        "finish_reason": _FINISHED.get(reply["stop_type"], reply["stop_type"]),
        "token_ids": reply.get("tokens") or None,
    }
    return {"choices": [choice], "usage": {"completion_tokens": reply.get("tokens_predicted")}}
