"""An answer on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.ask import answer
from fledge.console import console
from fledge.engine import Engine, Piece


def test_the_text_is_shown_as_it_is(
    tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = ["all:\n", "\techo [b]:sm", "ile: :smile:\n"]
    monkeypatch.setattr(
        Engine, "stream_sync", lambda *given, **options: (Piece(text, [9], [0], None) for text in pieces)
    )
    answer(
        "?",
        target=str(tiny_target_folder),
        head=None,
        max_tokens=5,
        temperature=0,
        seed=None,
        dtype="float32",
        device="cpu",
        chat_template_kwargs={},
    )
    console.print("a line of a prompt: :smile:", markup=False)
    assert capsys.readouterr().out == "".join(pieces) + "a line of a prompt: :smile:\n"
