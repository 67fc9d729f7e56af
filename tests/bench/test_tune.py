"""Tuning: every shape is measured, and the front and the best follow from the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fledge.base.errors import DataError, EngineError
from fledge.bench import tune
from fledge.bench.concurrency import run_level
from fledge.bench.options import refused_by_name
from fledge.bench.results import LevelRow
from fledge.bench.tune import (
    ShapeRow,
    TuneOptions,
    best_shape,
    pareto,
    tune_shapes,
)
from fledge.engine import PLAIN, Engine, TreeShape
from fledge.engine.shape_text import parse_shapes
from fledge.heads import Head
from fledge.target import Target


def row(shape: TreeShape, tpot: float, throughput: float, low: float = 1.1, level: int = 4) -> ShapeRow:
    return ShapeRow(level, shape, tpot, throughput, 2.0, throughput / 100, low, 2.0)


def test_shapes_are_written_as_depth_topk_nodes() -> None:
    assert parse_shapes("4-4-16, 2-4-8") == (TreeShape(4, 4, 16), TreeShape(2, 4, 8))
    assert parse_shapes("") == ()
    with pytest.raises(DataError, match="depth-topk-nodes"):
        parse_shapes("4x4")
    with pytest.raises(EngineError):
        parse_shapes("1-1-60")


@pytest.mark.parametrize(
    ("options", "message"), [({"repeats": 0}, "repeats = 0"), ({"concurrency": ()}, "concurrency = ")]
)
def test_sizes_that_measure_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message), refused_by_name():
        TuneOptions(**options)


def test_the_front_holds_what_nothing_else_beats_twice() -> None:
    fast, wide, beaten = (TreeShape(4, 4, 16), TreeShape(6, 4, 16), TreeShape(2, 4, 8))
    rows = pareto([row(fast, 5.0, 300), row(wide, 6.0, 350), row(beaten, 6.5, 290)])
    assert [one.on_front for one in rows] == [True, True, False]


def test_a_gain_within_noise_is_no_reason_to_draft() -> None:
    shape = TreeShape(4, 4, 16)
    plain = row(PLAIN, 6.0, 100, low=1.0)
    assert best_shape([plain, row(shape, 5.0, 110, low=1.02)], 4) == shape
    assert best_shape([plain, row(shape, 5.9, 101, low=0.97)], 4) == PLAIN
    noisier = row(TreeShape(5, 8, 32), 4.9, 112, low=0.97)  # no reason to leave the one that is sure
    assert best_shape([plain, row(shape, 5.0, 110, low=1.02), noisier], 4) == shape


def test_every_shape_is_measured_at_every_concurrency(target: Target, head: Head, tmp_path: Path) -> None:
    options = TuneOptions((TreeShape(2, 2, 4),), (1, 2), prompts=2, max_tokens=6, repeats=2)
    found = tune_shapes(target, head, options)
    assert [(one.concurrency, one.shape.depth) for one in found.rows] == [(1, 0), (1, 2), (2, 0), (2, 2)]
    assert all(len(cells) == len(found.table.columns) for cells in found.table.rows)
    assert any(one.on_front for one in found.rows)
    url = tmp_path / "tuned.json"
    found.save(str(url))
    value = json.loads(url.read_text())
    assert set(value["best"]) == {"1", "2"}


def test_every_engine_has_answered_before_one_is_measured(
    target: Target, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []

    def noted(engine: Engine, name: str, requests: list[list[int]], *rest: Any) -> LevelRow:
        calls.append((name, engine.stats().prompt_tokens))
        return run_level(engine, name, requests, *rest)

    monkeypatch.setattr(tune, "run_level", noted)
    options = TuneOptions((TreeShape(2, 2, 4),), (1, 2), prompts=2, max_tokens=4, repeats=1)
    tune_shapes(target, head, options)
    for level in (calls[:4], calls[4:]):
        assert {name for name, _ in level[:2]} == {name for name, _ in level[2:]} == {"plain", "2-2-4"}
        assert all(tokens for _, tokens in level[2:])
