"""An answer on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fledge.base.console import console
from fledge.base.errors import EngineError
from fledge.commands.ask import answer
from fledge.engine import Engine, Piece
from fledge.target import TargetOptions


def ask(question: str, target: Path) -> None:
    answer(
        question,
        target=TargetOptions(model=str(target), dtype="float32"),
        head=None,
        plain=True,
        max_tokens=5,
        temperature=0,
        seed=None,
    )


def test_the_text_is_shown_as_it_is(
    tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = ["all:\n", "\techo [b]:sm", "ile: :smile:\n"]
    monkeypatch.setattr(
        Engine, "stream_sync", lambda *given, **options: (Piece(text, [9], [0], None) for text in pieces)
    )
    ask("?", tiny_target_folder)
    console.print("a line of a prompt: :smile:", markup=False)
    assert capsys.readouterr().out == "".join(pieces) + "a line of a prompt: :smile:\n"


def test_a_question_that_is_not_utf_8_is_refused(tiny_target_folder: Path) -> None:
    with pytest.raises(EngineError, match="character 2 of the question isn't UTF-8"):
        ask(os.fsdecode(b"f\xfcr"), tiny_target_folder)  # as Python hands on what a shell gave it
