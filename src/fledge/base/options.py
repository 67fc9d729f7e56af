"""Options are declared once, as a pydantic model: keywords, command line, recipes and documentation come from it.

    class EngineOptions(Options):
        max_batch: Whole = Field(16, ge=1, description="requests served at once")

A field's description is its documentation. `Flag` in its annotation says how the command line differs.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fledge.base.errors import FledgeError, did_you_mean


def whole(value: object) -> int:
    """The int of a value that is a whole number, NumPy's included; for `Whole`. Raises a ValueError."""
    if isinstance(value, bool | str):
        raise ValueError("use a whole number")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError("use a whole number") from None


Whole = Annotated[int, BeforeValidator(whole)]
Switch = StrictBool
DraftWeights = Literal["int8", "int4", "bfloat16"]  # storage of a head's matrices


@dataclass(frozen=True)
class Flag:
    """Command-line form of an option."""

    first: bool = False  # above the headings, among those that people need first
    names: tuple[str, ...] = ()  # in place of --the-field's-name
    metavar: str | None = None
    default: str | None = None  # shown in place of the field's own
    hidden: bool = False  # not an option there


class RecipePart(BaseModel):
    """Base of the models that make up a recipe: frozen, without unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Options(RecipePart):
    """Base of the models that keywords are made of. An invalid value raises the model's `error`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    error: ClassVar[type[FledgeError]] = FledgeError

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as failure:
            raise self.error(self._in_words(failure.errors()[0])) from failure

    def changed(self, **values: Any) -> Any:
        """A copy with other values, validated."""
        return type(self)(**{**self.given(), **values})

    def given(self) -> dict[str, Any]:
        """The values that aren't defaults, by name."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    @classmethod
    def signature(cls) -> Signature:
        """Signature with the options' fields as keyword-only parameters."""
        return Signature(
            [
                Parameter(name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation)
                for name, field in cls.model_fields.items()
            ]
        )

    @classmethod
    def _in_words(cls, failure: ErrorDetails) -> str:
        place, value, context = failure["loc"], failure["input"], failure.get("ctx", {})
        name = ".".join(map(str, place))
        match failure["type"]:
            case "extra_forbidden":
                hint = did_you_mean(name, cls.model_fields)
                return f"there is no option {name}{hint or '; use one of ' + ', '.join(cls.model_fields)}"
            case "greater_than_equal":
                advice = f"use {context['ge']:,} or more"
            case "greater_than":
                advice = f"use more than {context['gt']:,}"
            case "less_than_equal":
                advice = f"use {context['le']:,} or less"
            case "less_than":
                advice = f"use less than {context['lt']:,}"
            case "bool_type" | "bool_parsing":
                advice = "use True or False"
            case "literal_error":
                advice = f"use {context['expected']}"
            case "value_error":
                advice = str(context["error"])
            case _:
                advice = failure["msg"]
        return advice if not name else f"{name} is {value!r}; {advice}"


def flag_of(field: FieldInfo) -> Flag:
    """A field's `Flag`."""
    return next((one for one in field.metadata if isinstance(one, Flag)), Flag())
