"""`train.minutes`: how many steps fit, what a calibration leaves behind, and that the decision holds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fledge.features import FeatureStore, SampleInfo
from fledge.target import Target
from fledge.train import trainer
from fledge.train.batches import epoch_batches
from fledge.train.budget import seconds_per_token, steps_within
from fledge.train.checkpoint import Checkpoint
from tests.train.test_trainer import OPTIONS, features, files, run, run_until_killed, target, undisturbed

__all__ = ["features", "target", "undisturbed"]  # fixtures


def batches(*tokens: int) -> list[list[SampleInfo]]:
    return [[SampleInfo(0, i, "train", "", 0.0, n, n)] for i, n in enumerate(tokens)]


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        (0.1, 1),  # one step at least
        (34.9, 2),  # the last measurement counts
        (35, 3),
        (60, 4),  # 10 + 10 + 10 + 20 and the last measurement: 55
        (79.9, 4),  # the measurement after step 4, and then 20 more
        (80, 5),
        (1e9, 6),  # never more than there is
    ],
)
def test_as_many_steps_as_fit_with_their_measurements(budget: float, steps: int):
    schedule = batches(10, 10, 10, 20, 20, 10)
    assert steps_within(schedule, 1.0, 5.0, 4, budget) == steps


def test_calibration_takes_batches_from_the_whole_schedule():
    seen: list[int] = []
    found = seconds_per_token(batches(*range(1, 101)), lambda batch: seen.append(batch[0].tokens), 1e9)
    assert 0 < found < 1
    assert len(seen) == 25
    assert seen[0] == 1
    assert seen[-1] > 90


def test_a_budget_that_is_large_enough_changes_nothing(
    target: Target, features: str, undisturbed: Path, tmp_path: Path
):
    run(target, features, tmp_path, OPTIONS.model_copy(update={"minutes": 1000.0}))
    assert files(tmp_path / "head") == files(undisturbed / "head")


def test_the_decision_holds_when_the_run_is_killed_on_another_machine(
    target: Target, features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = epoch_batches(FeatureStore(features).split("train"), OPTIONS.batch_tokens, OPTIONS.seed, 0)[:6]
    speed = 3600 / sum(info.tokens for batch in first for info in batch)  # six steps take an hour
    options = OPTIONS.model_copy(update={"minutes": 61.0})
    monkeypatch.setattr(trainer, "seconds_per_token", lambda *_: speed)
    whole = run(target, features, tmp_path / "whole", options)
    assert whole.steps == 6

    save = Checkpoint.save  # of a slow disk: the run is killed while the first checkpoint is being written
    monkeypatch.setattr(Checkpoint, "save", lambda *args: (time.sleep(0.2), save(*args)))
    for last_step in (0, 3):
        run_until_killed(target, features, tmp_path / "killed", last_step, options)
        checkpoint = Checkpoint.load(str(tmp_path / "killed" / "train"))
        assert checkpoint is not None
        assert checkpoint.total == 6
        monkeypatch.setattr(trainer, "seconds_per_token", lambda *_: speed * 3)
    run(target, features, tmp_path / "killed", options)
    assert files(tmp_path / "killed" / "head") == files(tmp_path / "whole" / "head")


def test_a_budget_for_next_to_nothing_is_warned_of(
    target: Target,
    features: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """As a busy machine's, which makes calibration slow."""
    monkeypatch.setattr(trainer, "seconds_per_token", lambda *_: 1e6)
    options = OPTIONS.model_copy(update={"minutes": 1.0, "epochs": 20.0})
    assert run(target, features, tmp_path, options).steps == 1
    assert "too few for a useful head: raise train.minutes" in caplog.text
