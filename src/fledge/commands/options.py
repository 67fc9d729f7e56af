"""Command-line options made from option models (`base/options.py`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fledge.base.options import flag_of

Model = TypeVar("Model", bound=BaseModel)
_SIMPLE = (int, float, str, bool)


@dataclass(frozen=True)
class Flags(Generic[Model]):
    """The options of a model, below one heading of --help."""

    model: type[Model]
    heading: str
    prefix: str = ""  # of each option's name: learn makes --learn-share of `share`
    only: tuple[str, ...] = ()  # these fields; empty: all

    def __iter__(self) -> Iterator[tuple[str, str, FieldInfo]]:
        """Parameter, field's name and field of each option."""
        for name, field in self.model.model_fields.items():
            if (not self.only or name in self.only) and not flag_of(field).hidden:
                yield (f"{self.prefix}_{name}" if self.prefix else name), name, field

    def parameters(self) -> list[inspect.Parameter]:
        """The options as parameters that Typer understands."""
        return [self._parameter(parameter, field) for parameter, _, field in self]

    def made(self, given: Mapping[str, Any], **more: Any) -> Model:
        """The model of a command's parameters; `more`: fields that aren't options. Raises the model's error."""
        values = {name: given[parameter] for parameter, name, field in self}
        defaults = {name: field.default for _, name, field in self}
        return self.model(
            **{name: value for name, value in values.items() if value not in (None, defaults[name])}, **more
        )

    def _parameter(self, name: str, field: FieldInfo) -> inspect.Parameter:
        flag, kind = flag_of(field), _kind(field.annotation)
        default = inspect.Parameter.empty if field.is_required() else field.default
        names, shown = flag.names, flag.default
        if kind is str and isinstance(field.default, tuple):  # written with commas
            default, shown = None, ",".join(str(one) for one in field.default)
        if kind is bool and default is False and not names:
            names = ("--" + name.replace("_", "-"),)  # without a --no- form
        option = typer.Option(
            *names,
            help=field.description,
            metavar=flag.metavar,
            show_default=shown or True,
            rich_help_panel=None if flag.first else self.heading,
        )
        if kind not in _SIMPLE or default is None:
            kind, default = kind | None, default or None
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
        )


def with_flags(*groups: Flags[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, in place of its `**given`, the options of these models."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        own = [one.replace(kind=one.KEYWORD_ONLY) for one in own]
        made = [parameter for group in groups for parameter in group.parameters()]
        command.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in (*own, *made)}
        return command

    return decorated


def _kind(annotation: Any) -> Any:
    """Type that the command line reads for a field: a simple type, a choice, a list of texts, or a text."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return _kind(next(part for part in get_args(annotation) if part is not type(None)))
    if origin is Literal or annotation in _SIMPLE:
        return annotation
    if origin is tuple and get_args(annotation)[0] is str:  # repeatable
        return list[str]
    return str
