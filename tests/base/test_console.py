"""Tables in a terminal: figures stay whole where it is narrow."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fledge.base import console

COLUMNS = ["what is measured", "over plain decode", "95 % interval"]
ROWS = [["a long name of several words", "1.895 times", "1.859 to 1.931"]]


def printed(width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    output = io.StringIO()
    monkeypatch.setattr(console, "console", Console(file=output, width=width))
    console.print_table("Title", COLUMNS, ROWS)
    return output.getvalue().splitlines()


def test_a_table_that_fits_has_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(90, monkeypatch)
    assert any("│ a long name of several words │" in line for line in lines)


def test_in_a_narrow_terminal_texts_are_broken_and_figures_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(48, monkeypatch)
    assert max(map(len, lines)) <= 48
    assert not any("│" in line for line in lines)
    assert any(line.rstrip().endswith("1.895 times 1.859 to 1.931") for line in lines)
    assert {"several", "words"} <= set(" ".join(lines).split())


def test_what_is_wider_than_the_terminal_is_folded_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(24, monkeypatch)
    assert max(map(len, lines)) <= 24
    assert "…" not in "".join(lines)


def test_bytes_are_written_as_people_write_them() -> None:
    written = [console.human_bytes(count) for count in (269e6, 2.26e7, 12)]
    assert written == ["269 MB", "22.6 MB", "12 B"]
