"""A room's public names are imported on first use, and are those its `__init__.py` names for type checkers."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import fledge.train.evaluation

ROOMS = ("bench", "data", "data.privacy", "data.sources", "draft", "engine", "features", "target", "train")


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_there_and_no_other(room: str) -> None:
    module = importlib.import_module(f"fledge.{room}")
    names = re.findall(r"^    from \S+ import (\w+)", Path(str(module.__file__)).read_text(), re.MULTILINE)
    names = names or module.__all__
    for name in names:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from fledge.{room} import Nothing")


def test_a_function_is_not_hidden_by_the_module_it_lives_in() -> None:
    from fledge.train import evaluate

    assert evaluate is fledge.train.evaluation.evaluate
