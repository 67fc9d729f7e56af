"""A user's own code, named as `module:name` in a recipe or an option."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from typing import Any

from fledge.base.errors import RecipeError


def imported(path: str) -> Any:
    """The object `module:name`; the working folder is on the search path.

    Raises a RecipeError that names what is missing.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise RecipeError(f"{path!r} is not an import path: write module:name, such as my_module:my_name")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(
            f"{module!r} of {path!r} can't be imported ({error}); start in the folder that holds it, or install it"
        ) from error
    if not hasattr(found, name):
        raise RecipeError(f"the module {module!r} ({getattr(found, '__file__', 'built in')}) has no {name!r}")
    return getattr(found, name)


def made(call: str) -> Any:
    """The result of calling `module:name` or `module:name(key=value, ...)`; a value that is no literal is text.

    Raises a RecipeError like `imported`, and a ValueError where the call fails.
    """
    path, arguments = call, ""
    if match := re.fullmatch(r"([^()]*)\((.*)\)", call.strip()):
        path, arguments = match.groups()
    kind, values = imported(path.strip()), {}
    for argument in re.split(r",(?![^\[({]*[\])}])", arguments) if arguments.strip() else []:
        key, equals, value = (part.strip() for part in argument.partition("="))
        if not (equals and key.isidentifier()):
            raise ValueError(f"{argument.strip()!r} isn't key=value")
        try:
            values[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            values[key] = value
    try:
        return kind(**values)
    except Exception as error:
        how = f"with {arguments}" if values else "without arguments"
        raise ValueError(f"calling it {how} failed: {error}") from error
