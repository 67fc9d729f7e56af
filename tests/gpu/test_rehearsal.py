"""The check for a GPU, rehearsed: every part runs at tiny sizes, and a case that fails hides nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import record
from tests.gpu.record import Check


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def failing() -> dict[str, Any]:
    raise ValueError("no such kernel")


def test_a_case_that_fails_is_recorded_and_the_others_run(tmp_path: Path) -> None:
    def part(check: Check) -> None:
        check.case("breaks", failing)
        check.case("is wrong", lambda: {"ok": False, "error": 0.5})
        check.case("works", lambda: {"us": 3})
        raise KeyError("what is behind")

    check = Check(tmp_path / "gpu.jsonl", 60.0, small=True)
    check.run("part", part)
    assert check.failed == ["part: breaks", "part: is wrong", "part: setting up"]
    found = {line["case"]: line for line in lines(tmp_path / "gpu.jsonl")}
    assert "ValueError: no such kernel" in found["breaks"]["trace"]
    assert found["is wrong"]["error"] == 0.5
    assert (found["works"]["ok"], found["works"]["us"]) == (True, 3)


def test_the_next_run_goes_on_where_the_last_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def part(check: Check) -> None:
        check.case("first", lambda: ran.append("first") or {})
        check.case("second", lambda: ran.append("second") or {}, least=100.0)

    def run(seconds: float) -> Check:
        check = Check(tmp_path / "gpu.jsonl", seconds, small=False)
        check.run("part", part)
        return check

    assert run(60.0).skipped == ["part"]
    assert run(600.0).skipped == []
    assert ran == ["first", "second"]
    monkeypatch.setattr(record, "sources_digest", lambda: "changed")
    run(600.0)
    assert ran == ["first", "second"] * 2


def test_a_case_that_failed_is_run_again(tmp_path: Path) -> None:
    for _ in range(2):
        check = Check(tmp_path / "gpu.jsonl", 60.0, small=True)
        check.run("part", lambda check: check.case("breaks", failing))
        assert check.failed
    assert len(lines(tmp_path / "gpu.jsonl")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["device", "kernels", "answers", "training", "reads", "speed", "float32", "smollm2"]
)
def test_every_part_runs_at_tiny_sizes(tmp_path: Path, part: str) -> None:
    from tests.gpu.__main__ import PARTS, main

    assert part in PARTS
    assert main(["--small", "--rehearsal", str(tmp_path), "--only", part]) == 0
    found = lines(tmp_path / "gpu-rehearsal.jsonl")
    assert found
    assert all(line["ok"] and line["part"] == part for line in found)
