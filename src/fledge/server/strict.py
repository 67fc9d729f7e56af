"""Request bodies with strict types, in which unknown fields are rejected, not ignored."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fledge.server import errors

Several = Field(min_length=1, max_length=4096, fail_fast=True)  # prompts, or messages
_MOST_FIELDS = 256  # of one object

# Unsupported fields, with the values that have no effect: some clients always send these.
_NOTHING_ASKED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (None, True),
    "annotations": (None, []),  # of an assistant's message, as OpenAI's own answers have it
    "audio": (None,),
    "continue_final_message": (None, False),
    "detokenize": (None, True),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "include_obfuscation": (None, False),
    "include_stop_str_in_output": (None, False),
    "length_penalty": (None, 1, 1.0),
    "logprob_start_len": (None, -1),
    "metadata": (None, {}),
    "min_new_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "n_beams": (None, 1),
    "no_stop_trim": (None, False),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "priority": (None, 0),
    "return_hidden_states": (None, False),
    "return_routed_experts": (None, False),
    "service_tier": (None, "auto", "default"),
    "spaces_between_special_tokens": (None, True),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_calls": (None, []),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "use_beam_search": (None, False),
}


class StrictBody(BaseModel):
    """A JSON object; an unknown field is an error, unless its value has no effect."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_fields_without_effect(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.keys() <= cls.__pydantic_fields__.keys():
            return data
        if len(data) > _MOST_FIELDS:
            raise ValueError(f"an object of more than {_MOST_FIELDS} fields; send fewer")
        idle = {**_NOTHING_ASKED, "best_of": (None, data.get("n") or 1)}  # the best n of n are all of them
        return {
            key: value
            for key, value in data.items()
            if key in cls.model_fields or not any(_same(value, nothing) for nothing in idle.get(key, (None,)))
        }


Body = TypeVar("Body", bound=StrictBody)


def read(form: type[Body], fields: Any) -> Body:
    """Parse the fields as `form`; an ApiError that names what is wrong with them."""
    try:
        return form.model_validate(fields)
    except ValidationError as error:
        raise errors.from_validation(error.errors(include_url=False, include_input=False)) from None


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)
