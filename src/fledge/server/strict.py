"""Request bodies with strict types, in which unknown fields are rejected if they could change the answer."""

from __future__ import annotations

import logging
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fledge.server import errors

logger = logging.getLogger("fledge.server")

Several = Field(min_length=1, max_length=4096, fail_fast=True)  # prompts, or messages
_MOST_FIELDS = 256  # of one object

# Fields that can't change an answer, from clients that send them to other servers as well.
_HINTS = frozenset(
    (
        "anthropic_beta",
        "anthropic_version",
        "betas",
        "cache_control",
        "cache_prompt",
        "client_metadata",
        "context_management",
        "guided_decoding_backend",
        "draft_model",
        "dry_allowed_length",  # of llama.cpp's samplers that other fields turn on, which are refused
        "dry_base",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "id_slot",
        "include_obfuscation",
        "inference_geo",
        "keep_alive",
        "low_vram",
        "main_gpu",
        "metadata",
        "mirostat_eta",
        "mirostat_tau",
        "models",  # to fall back to
        "num_batch",  # Ollama's, as the next ones
        "num_ctx",
        "num_gpu",
        "num_keep",
        "num_thread",
        "prediction",
        "priority",
        "prompt_cache_key",
        "prompt_cache_retention",
        "provider",
        "request_id",
        "return_progress",
        "rid",
        "route",
        "service_tier",
        "speed",
        "store",
        "thinking_budget",
        "timings_per_token",
        "ttl",
        "usage",
        "use_mlock",
        "use_mmap",
        "verbosity",
        "xtc_threshold",
    )
)
# What is asked of something that this server hasn't got, with what the log says.
_IGNORED = {
    "samplers": "samplers is ignored in requests: the order of the sampling steps is fixed",
    "web_search_options": "web_search_options is ignored in requests: this server has no web search",
}
# Unsupported fields, with the values that have no effect: some clients always send these.
_NOTHING_ASKED: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "cache_salt": (None, ""),
    "detokenize": (None, True),
    "dry_multiplier": (None, 0, 0.0),
    "dynatemp_range": (None, 0, 0.0),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "images": (None, []),
    "include_reasoning": (None, True),
    "length_penalty": (None, 1, 1.0),
    "logprob_start_len": (None, -1),
    "mcp_servers": (None, []),
    "min_new_tokens": (None, 0),
    "min_keep": (None, 0),
    "mirostat": (None, 0),
    "modalities": (None, ["text"]),
    "n_beams": (None, 1),
    "n_probs": (None, 0),
    "parallel_tool_calls": (None, True, False),
    "partial": (None, False),
    "prefix": (None, False),
    "reasoning_format": (None, "auto"),
    "repeat_last_n": (None, -1, 64),  # Ollama's and llama.cpp's default
    "return_hidden_states": (None, False),
    "return_routed_experts": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "separate_reasoning": (None, True),
    "spaces_between_special_tokens": (None, True),
    "suffix": (None, ""),
    "tool_calls": (None, []),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
    "top_n_sigma": (None, -1, -1.0),
    "typ_p": (None, 1, 1.0),
    "typical_p": (None, 1, 1.0),
    "use_beam_search": (None, False),
    "xtc_probability": (None, 0, 0.0),
}
# Of messages and their parts: what would change the answer. Any other unknown field there is a hint.
_TELLING = frozenset(
    (
        "audio",
        "documents",
        "file",
        "function_call",
        "image_url",
        "images",
        "input_audio",
        "partial",
        "prefix",
        "video_url",
        "videos",
    )
)
_SIMPLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_MOST_TOLD = 256  # field names logged per process, once each
_told: set[str] = set()


class StrictBody(BaseModel):
    """A JSON object; an unknown field is an error, unless it can't change the answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_fields_without_effect(cls, data: Any) -> Any:
        data = cls._renamed(data) if isinstance(data, dict) else data
        if not isinstance(data, dict) or data.keys() <= cls.__pydantic_fields__.keys():
            return data
        if len(data) > _MOST_FIELDS:
            raise ValueError(f"an object of more than {_MOST_FIELDS} fields; send fewer")
        return {key: value for key, value in data.items() if not cls._without_effect(key, value)}

    @classmethod
    def _without_effect(cls, key: str, value: Any) -> bool:
        if key in cls.__pydantic_fields__ or key in cls._aliases():
            return False
        if any(_same(value, nothing) for nothing in _NOTHING_ASKED.get(key, (None,))):
            return True
        if cls._is_hint(key):
            tell(key, _IGNORED.get(key, f"{key} is ignored in requests: it can't change an answer"))
            return True
        return False

    @classmethod
    def _renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Rename fields that other APIs call differently."""
        return data

    @classmethod
    def _is_hint(cls, key: str) -> bool:
        return key in _HINTS or key in _IGNORED

    @classmethod
    def _aliases(cls) -> set[str]:
        return {field.alias for field in cls.__pydantic_fields__.values() if field.alias}


class ForgivingBody(StrictBody):
    """An object that clients decorate, such as a message: most unknown fields can't change the answer."""

    @classmethod
    def _is_hint(cls, key: str) -> bool:
        return key not in _TELLING


def tell(name: str, message: str) -> None:
    """Log once for each name, which comes from a client."""
    if name not in _told and len(_told) < _MOST_TOLD and _SIMPLE_NAME.fullmatch(name):
        _told.add(name)
        logger.info("%s", message)


Body = TypeVar("Body", bound=StrictBody)


def read(form: type[Body], fields: Any, at: str = "") -> Body:
    """Parse the fields as `form`; an ApiError that names what is wrong with them. `at`: their place in the body."""
    try:
        return form.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        place = tuple(filter(None, at.split(".")))
        raise errors.from_validation([{**each, "loc": (*place, *each["loc"])} for each in found]) from None


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)
