"""Checks of what callers give: a wrong type is refused at once, not inside a step that other requests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real

from fledge.base import options
from fledge.base.errors import EngineError


def whole(name: str, value: object, wanted: str = "a whole number") -> int:
    """`value` as an int; NumPy's integers are welcome, booleans and strings aren't."""
    try:
        return options.whole(value)
    except ValueError:
        raise EngineError(f"{name} is {value!r}; use {wanted}") from None


def number(name: str, value: object) -> float:
    """`value` as a float."""
    if not isinstance(value, bool) and isinstance(value, Real):
        return float(value)
    raise EngineError(f"{name} is {value!r}; use a number")


def switch(name: str, value: object) -> bool:
    """`value`, if it is True or False."""
    if isinstance(value, bool):
        return value
    raise EngineError(f"{name} is {value!r}; use True or False")


def listed(values: object) -> object:
    """An array's or a tensor's values as a list; anything else as it is."""
    tolist = getattr(values, "tolist", None)
    return values if tolist is None else tolist()


def whole_numbers(name: str, values: object) -> tuple[int, ...]:
    """The ints of a sequence, an array or a tensor; None: none."""
    values = listed(values)
    if values is None:
        return ()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence | set | frozenset):
        raise EngineError(f"{name} is {values!r}; use a list of whole numbers")
    if all(type(value) is int for value in values):  # as thousands of a prompt's are
        return tuple(values)
    return tuple(whole(f"{name}: entry {place}", value) for place, value in enumerate(values))


def texts(name: str, values: object) -> tuple[str, ...]:
    """A text or a sequence of them, none of which is empty; None: none."""
    if values is None:
        return ()
    given = (values,) if isinstance(values, str) else values
    if not isinstance(given, Sequence) or not all(isinstance(text, str) for text in given):
        raise EngineError(f"{name} is {values!r}; use a text or a list of texts")
    if "" in given:
        raise EngineError(f"{name} holds an empty text; use texts of at least one character")
    return tuple(given)
