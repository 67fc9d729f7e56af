"""A user's own code, named as `module:name` in a recipe or an option."""

from __future__ import annotations

import importlib
import os
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
