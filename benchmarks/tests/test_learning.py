"""How soon a server that learns is faster, against a server: probes, requests and their counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.learning import Course, Probe, Race, RaceOptions, main, run
from fledge.base.errors import DataError
from fledge.bench.workloads import Prompt
from fledge.engine import Engine
from fledge.target.target import Target
from tests.commands.command import Fledge
from tests.server.conftest import running, target
from tests.server.test_learn import STATE, Noted

__all__ = ["target"]  # a fixture

PROMPTS = [Prompt(str(number), "chat", (f"Tell me {number} things.",)) for number in range(5)]


def test_a_race_counts_its_requests_and_compares_the_answers_of_its_probes(target: Target) -> None:
    options = RaceOptions(minutes=0.02, max_tokens=48, probe_every=1, pause_s=0.0)
    told: list[str] = []
    noted, course = Noted(), Course.of(PROMPTS, 2)
    with running(Engine(target, max_batch=4, max_context=256, recorder=noted)) as server:
        found = asyncio.run(run(server.url, "tiny", course, options, told.append))
    assert found.requests > 0
    assert found.failed == 0
    assert found.tokens > 0
    assert len(told) == len(found.probes) > 0
    assert all(probe.same and probe.version == STATE["version"] for probe in found.probes)
    assert found.learning == STATE
    reached: dict[str, Any] = found.as_json()["reached"]
    assert list(reached) == ["1.2x", "1.5x", "2x"]
    assert len(noted.texts) == found.requests  # nothing is learnt from probes


def test_a_race_serves_each_prompt_once_and_no_prompt_of_a_probe(target: Target) -> None:
    options = RaceOptions(max_tokens=4, once=True, pause_s=0.0)
    noted, course = Noted(), Course.of([*PROMPTS, *PROMPTS[:1]], 2)
    with running(Engine(target, max_batch=4, max_context=256, recorder=noted)) as server:
        found = asyncio.run(run(server.url, "tiny", course, options, print))
    assert found.requests == len(noted.texts) == 3
    assert sorted(noted.texts) == sorted(prompt.token_ids(target) for prompt in PROMPTS[2:])
    with pytest.raises(DataError, match="give more prompts"):
        Course.of(PROMPTS, 5)
    assert Course.of(PROMPTS, 0) == (PROMPTS, PROMPTS)


def test_its_picture_has_a_line_for_each_curve_and_one_where_a_version_came(tmp_path: Path) -> None:
    paces = [100.0] * 3 + [220.0] + [100.0] * 5 + [220.0] * 9  # one that is fast by chance says nothing
    probes = [Probe(10.0 * number, 100.0, pace, True) for number, pace in enumerate(paces)]
    found = Race("tiny & small", probes, seconds=80.0, learning=STATE)
    picture = ElementTree.fromstring(found.picture())
    kinds = [element.get("class", "") for element in picture.iter()]
    assert [kind for kind in kinds if kind.startswith("line ")] == [
        "line s-faint", "line s-trained", "line s-trained", "line s-released", "line s-third"
    ]  # fmt: skip
    assert kinds.count("across") == 4  # 1x, and where version 3 began to serve, in both panels
    assert found.reached() == {1.2: 90.0, 1.5: 90.0, 2.0: 90.0}
    slower = Race("tiny", [replace(probe, plain=150.0) for probe in probes])
    assert slower.reached() == {1.2: 90.0, 1.5: None, 2.0: None}


def test_a_file_that_cannot_be_written_is_refused_before_the_race(
    instrument: Callable[[Callable[..., Any]], Fledge], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    for name in ("file/race.json", "race.svg"):
        error = instrument(main).error("mixed", "--target", "none", "--output", tmp_path / name)
        assert "file" in error
