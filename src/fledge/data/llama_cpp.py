"""llama-server's own completions, which give generated ids: its OpenAI route gives text alone.

POST /completion  {"prompt": [ids], "return_tokens": true}  ->  {"content", "tokens", "stop_type", "tokens_predicted"}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fledge.engine import SamplingParams

# What a server may have been started with, off.
_NEUTRAL = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "dry_multiplier", "xtc_probability"), 0.0),
    **dict.fromkeys(("dynatemp_range", "mirostat"), 0),
    "typical_p": 1.0,
}
_FINISHED = {"limit": "length", "eos": "stop", "word": "stop"}  # others are refused by their name
ROUTE = "/completion"
OWNER = "llamacpp"  # of the models that llama-server lists
_SEEDS = 2**32 - 1  # that number itself asks for a random one


def completion_body(prompt_ids: list[int], params: SamplingParams) -> dict[str, Any]:
    """A request of the parameters' distribution: what llama-server does to it by default is off."""
    seed = {} if params.seed is None else {"seed": params.seed % _SEEDS}
    return {
        "prompt": prompt_ids,
        "n_predict": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        **_NEUTRAL,
        "return_tokens": True,
        **seed,
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
