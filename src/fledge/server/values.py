"""Values in requests, as lenient as their meaning allows: 3.0 is a whole number, and -1 no limit."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

_INT64 = 1 << 63
_LONGEST_NAME = 512  # characters of a client's name that are logged
_MOST_BIASES = 4096  # entries of a logit_bias
StopText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
# Lists stop at their first error (fail_fast): reporting millions of them would block all other requests.
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _whole(value: Any) -> Any:
    """A whole number that a client wrote with a decimal point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _limit(value: Any) -> Any:
    """A number of tokens, of which llama.cpp's clients write -1 for no limit."""
    return None if (value := _whole(value)) == -1 and not isinstance(value, bool) else value


def _name(value: Any) -> Any:
    """A name that is only logged."""
    return str(value)[:_LONGEST_NAME] if isinstance(value, str | int) else None


def _few(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value):
        # llama.cpp's clients write pairs; false: never
        value = {str(token): -100.0 if bias is False else bias for token, bias in value}
    if isinstance(value, dict) and len(value) > _MOST_BIASES:
        raise ValueError(f"more than {_MOST_BIASES} entries; send fewer")
    return value


Whole = BeforeValidator(_whole)
Seed = Annotated[int, Field(ge=-_INT64, lt=_INT64), Whole]
TokenLimit = Annotated[Annotated[int, Field(ge=1, lt=1 << 31)] | None, BeforeValidator(_limit)]
AnyTokenLimit = Annotated[Annotated[int, Field(ge=0, lt=1 << 31)] | None, BeforeValidator(_limit)]
UserName = Annotated[str | None, BeforeValidator(_name)]
Biases = Annotated[
    dict[str, Annotated[Finite, Field(ge=-100, le=100)]],
    Field(max_length=_MOST_BIASES),
    BeforeValidator(_few),
]
