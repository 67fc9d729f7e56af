"""The errors a user can meet. Every message says what is wrong and ends with what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def one_line(error: BaseException) -> str:
    """Another library's error message, for use within our own: at most 300 characters of one line."""
    return " ".join(str(error).split())[:300]


def first_line(error: BaseException) -> str:
    """The first line of another library's error message, or its type; the rest is often pages of advice."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """The end of an error's message about a misspelt name: `; did you mean demo?`, or "" if none is similar."""
    closest = difflib.get_close_matches(name, [one for one in candidates if one != name], n=1, cutoff=0.7)
    return f"; did you mean {closest[0]}?" if closest else ""


class FledgeError(Exception):
    """Base of all errors fledge raises on purpose; the command line prints it without a traceback."""


class TargetError(FledgeError):
    """A target that can't be found, read or supported."""


class HeadError(FledgeError):
    """A draft head that can't be read, or belongs to another target."""


class RecipeError(FledgeError):
    """A recipe with an unknown key or a value out of range."""


class StorageError(FledgeError):
    """A full disk, a missing or damaged shard, an unreachable place."""


class DataError(FledgeError):
    """Prompts or conversations that can't be used."""


class EngineError(FledgeError):
    """A request the engine can't serve."""


class FingerprintError(FledgeError):
    """A folder that was made from inputs other than the current ones."""


class ServerError(FledgeError):
    """A server that can't be reached, started or understood: a taken port, wrong options, too little memory."""
