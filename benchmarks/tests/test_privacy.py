"""The privacy filter's benchmark: the forms it reads, and what it counts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.privacy import main, measure_privacy, privacy_table, read_corpus
from fledge.base.errors import DataError
from tests.commands.command import Fledge

TEXT = "Mail ann@postbox.org or call +49 30 1234567; she is 61."
SPANS = [
    ("EMAIL_ADDRESS", "EMAIL", "ann@postbox.org"),
    ("PHONE_NUMBER", "PHONENUMBER", "+49 30 1234567"),
    ("AGE", "AGE", "61"),
]


def _presidio_form() -> dict[str, object]:
    spans = [
        {
            "entity_type": kind,
            "entity_value": value,
            "start_position": TEXT.index(value),
            "end_position": TEXT.index(value) + len(value),
        }
        for kind, _, value in SPANS
    ]
    return {"full_text": TEXT, "spans": spans, "template_id": 1}


def _masked_form() -> dict[str, object]:
    return {
        "text": TEXT,
        "privacy_mask": [{"value": value, "label": label} for _, label, value in SPANS],
        "language": "English",
    }


def test_both_forms_are_read_alike_as_a_list_or_as_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([_presidio_form()]))
    (tmp_path / "b.jsonl").write_text(json.dumps(_masked_form()) + "\n")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((tmp_path / "b.jsonl").read_bytes()))
    first, second, packed = (
        read_corpus(str(tmp_path / name)) for name in ("a.json", "b.jsonl", "c.jsonl.gz")
    )
    assert first == second == packed
    assert [span.kind for span in first[0].spans] == ["EMAIL_ADDRESS", "PHONE_NUMBER", None]


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path) -> None:
    row = {"full_text": "one\u2028two\x85three", "spans": []}
    (tmp_path / "d.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [record.text for record in read_corpus(str(tmp_path / "d.jsonl"))] == [row["full_text"]]


def test_another_form_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('[{"tokens": ["a"], "tags": ["O"]}]')
    with pytest.raises(DataError, match="no labelled corpus"):
        read_corpus(str(tmp_path / "c.json"))


def test_strict_and_covering_figures_and_clean_prompts(tmp_path: Path) -> None:
    half = {"entity_type": "EMAIL_ADDRESS", "entity_value": "ann", "start_position": 5, "end_position": 8}
    (tmp_path / "a.json").write_text(json.dumps([_presidio_form(), {"full_text": TEXT, "spans": [half]}]))
    clean = [["What is 3 + 4?", "And minus 2?"], ["Hi, my name is Ada Lovelace."]]
    (fledge,) = measure_privacy(read_corpus(str(tmp_path / "a.json")), clean, presidio=False)
    email = fledge.kinds["EMAIL_ADDRESS"]
    assert (email.labelled, email.found, email.covered, email.reported, email.right, email.touching) == (
        2,
        1,
        2,
        2,
        1,
        2,
    )
    assert fledge.kinds["PHONE_NUMBER"].cells == [
        "1.000",
        "0.500",
        "1.000",
        "0.500",
    ]  # the second isn't labelled
    assert (fledge.changed, fledge.clean) == (1, 2)
    assert privacy_table(fledge)[1][-1][:2] == ["all", "3"]


def test_the_command_prints_both_filters(
    instrument: Callable[[Callable[..., Any]], Fledge], tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(json.dumps([_presidio_form()]))
    shown = instrument(main)(
        "--corpus",
        tmp_path / "a.json",
        "--clean",
        "none",
        "--output",
        tmp_path / "out.json",
    )
    assert "presidio" in shown
    assert "EMAIL_ADDRESS" in shown
    assert [scores["name"].split()[0] for scores in json.loads((tmp_path / "out.json").read_text())] == [
        "fledge",
        "presidio",
    ]
