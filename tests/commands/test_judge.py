"""`fledge evaluate --head`, `fledge compare`, and the TensorBoard curves of a run."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from fledge.train.compare import tau_difference
from tests.commands.command import Fledge


def test_a_head_is_judged_by_category_context_and_tree(
    fledge: Fledge, small_recipe: Path, finished_run: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*") if path.is_file()}
    output = fledge(
        "evaluate",
        small_recipe,
        "--run-dir",
        finished_run,
        "--head",
        finished_run / "head",
        "evaluate.shapes=[[2, 1, 3], [2, 2, 5]]",
    )
    for words in ("context up to 128", "temperature 0", "2,1,3", "2,2,5", "speed-up", "vocabulary miss"):
        assert words in output
    written = json.loads((finished_run / "evaluation.json").read_text())
    assert f"{written['overall']['tau']:.2f}" in output
    assert 0 <= written["overall"]["misses"] <= 1
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing is written


@pytest.mark.parametrize("limit", [0, 1])
def test_a_limit_that_leaves_no_greedy_answer_is_named(
    fledge: Fledge, small_recipe: Path, finished_run: Path, limit: int
) -> None:
    head, changed = finished_run / "head", f"evaluate.shape_tokens={limit}"
    output = fledge("evaluate", small_recipe, "--run-dir", finished_run, "--head", head, changed)
    assert "temperature 0" in output
    assert f"evaluate.shape_tokens ({limit}) leave no greedy held-out answer" in output


def test_a_head_compared_with_itself_is_no_better(
    fledge: Fledge, small_recipe: Path, finished_run: Path
) -> None:
    head = finished_run / "head"
    output = fledge("compare", head, head, small_recipe, "--run-dir", finished_run)
    assert "+0.000 .. +0.000" in output
    assert "can't tell the heads apart" in output


def test_the_interval_covers_the_difference_and_narrows_with_data() -> None:
    generator = torch.Generator().manual_seed(0)

    def counts(n: int, gain: float) -> torch.Tensor:
        rounds = torch.randint(20, 40, (n,), generator=generator).double()
        first = rounds * (1.5 + torch.rand(n, generator=generator, dtype=torch.float64))
        return torch.stack((torch.stack((first, rounds), 1), torch.stack((first + gain * rounds, rounds), 1)))

    small, large = tau_difference("all", counts(20, 0.0)), tau_difference("all", counts(20, 0.3))
    assert not small.certain
    assert large.certain
    assert large.low <= large.tau[1] - large.tau[0] <= large.high
    noisy = counts(400, 0.0)
    noisy[1, :, 0] += torch.randn(400, generator=generator, dtype=torch.float64)
    few, many = tau_difference("all", noisy[:, :20]), tau_difference("all", noisy)
    assert many.high - many.low < few.high - few.low


def test_few_conversations_seldom_claim_a_difference_that_isnt_there() -> None:
    generator = torch.Generator().manual_seed(1)

    def same(n: int) -> torch.Tensor:
        tokens = torch.randint(30, 60, (n,), generator=generator).double()
        tau = 1.8 + 0.4 * torch.randn(2, n, generator=generator, dtype=torch.float64)
        return torch.stack((tokens.expand(2, n), tokens / tau.clamp(min=1)), 2)

    assert not any(tau_difference("code", same(4)).certain for _ in range(20))
    for n in (5, 8, 20):
        assert sum(tau_difference("code", same(n)).certain for _ in range(300)) <= 0.09 * 300


def test_tensorboard_events_hold_every_step_once(finished_run: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    data = (finished_run / "train" / "events.out.tfevents.fledge").read_bytes()
    events, place = [], 0
    while place < len(data):  # length, checksum, event, checksum
        (length,) = struct.unpack("<Q", data[place : place + 8])
        events.append(Event.FromString(data[place + 12 : place + 12 + length]))
        place += 16 + length
    values = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    rows = [json.loads(line) for line in (finished_run / "train" / "metrics.jsonl").read_text().splitlines()]
    for tag, key in (("loss", "loss"), ("tau", "tau"), ("lr", "lr")):
        got = [(step, round(value, 4)) for step, name, value in values if name == tag]
        assert got == [(row["step"], round(row[key], 4)) for row in rows if row[key] is not None], tag
    assert any(name == "acceptance/1" for _, name, _ in values)
