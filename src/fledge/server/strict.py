"""Request bodies with strict types, in which unknown fields are rejected if they could change the answer."""

from __future__ import annotations

import logging
import re
from importlib import resources
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fledge.server import errors

logger = logging.getLogger("fledge.server")

Several = Field(min_length=1, max_length=4096, fail_fast=True)  # prompts, or messages
_MOST_FIELDS = 256  # of one object

_UNKNOWN = yaml.safe_load((resources.files("fledge.server") / "unknown_fields.yaml").read_text("utf-8"))
_SIMPLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_MOST_LOGGED = 256  # field names per process, once each
_logged: set[str] = set()


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
        if any(_same(value, nothing) for nothing in (None, *_UNKNOWN["nothing_asked"].get(key, ()))):
            return True
        if cls._is_hint(key):
            log_once(
                key, _UNKNOWN["ignored"].get(key, f"{key} is ignored in requests: it can't change an answer")
            )
            return True
        return False

    @classmethod
    def _renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Rename fields that other APIs call differently."""
        return data

    @classmethod
    def _is_hint(cls, key: str) -> bool:
        return key in _UNKNOWN["hints"] or key in _UNKNOWN["ignored"]

    @classmethod
    def _aliases(cls) -> set[str]:
        return {field.alias for field in cls.__pydantic_fields__.values() if field.alias}


class ForgivingBody(StrictBody):
    """An object that clients decorate, such as a message: most unknown fields can't change the answer."""

    @classmethod
    def _is_hint(cls, key: str) -> bool:
        return key not in _UNKNOWN["changes_a_message"]


def log_once(name: str, message: str) -> None:
    """Log once for each name, which comes from a client."""
    if name not in _logged and len(_logged) < _MOST_LOGGED and _SIMPLE_NAME.fullmatch(name):
        _logged.add(name)
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
