"""A command line, called in this process: a process of its own would import torch again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fledge.commands.main import main


class Fledge:
    """Calls an entry point in this process: fledge's, or that of an instrument in benchmarks/."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        entry: Callable[[], None] = main,
    ) -> None:
        self._monkeypatch, self._capsys, self._entry = monkeypatch, capsys, entry

    def __call__(self, *arguments: str | Path, expect: int = 0) -> str:
        """Output and errors of a command that must end with the given exit code."""
        self._monkeypatch.setattr(sys, "argv", ["fledge", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            self._entry()
        captured = self._capsys.readouterr()
        assert (ended.value.code or 0) == expect, captured
        return captured.out + captured.err

    def error(self, *arguments: str | Path) -> str:
        """The one line a failing command prints last."""
        last = self(*arguments, expect=2).splitlines()[-1]
        assert last.startswith("error: ")
        return last
