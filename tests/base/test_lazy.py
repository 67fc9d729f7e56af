"""A room's public names are imported on first use, and are what its `__all__` says."""

from __future__ import annotations

import importlib

import pytest

import fledge.train.evaluation

ROOMS = ("bench", "data", "data.privacy", "data.sources", "engine", "features", "target", "train")


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_there_and_no_other(room: str) -> None:
    module = importlib.import_module(f"fledge.{room}")
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from fledge.{room} import Nothing")


def test_a_function_is_not_hidden_by_the_module_it_lives_in() -> None:
    from fledge.train import evaluate

    assert evaluate is fledge.train.evaluation.evaluate
