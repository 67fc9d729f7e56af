"""What the instruments' tests share with those of the package, and a way to call an instrument."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from benchmarks.command import run
from tests.bench.conftest import head, target
from tests.commands.command import Fledge
from tests.conftest import _one_thread, finished_run, shared, small_recipe, tiny_target_folder

__all__ = [
    "_one_thread",
    "finished_run",
    "head",
    "shared",
    "small_recipe",
    "target",
    "tiny_target_folder",
]  # fixtures


@pytest.fixture
def instrument(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Callable[..., Any]], Fledge]:
    """By an instrument's `main`, what calls its command line."""
    return lambda main: Fledge(monkeypatch, capsys, partial(run, main))
