"""What guards serving from a bad update: losses that aren't numbers, that explode, heads that do worse."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.base.errors import DataError
from fledge.engine.record import Recorded
from fledge.learn import Versions
from fledge.learn.wire import send, send_conversation
from fledge.learn.worker import Worker
from fledge.target.matrix import Quantization
from fledge.target.target import Target
from fledge.train.compare import TauDifference
from tests.learn.test_learning import told
from tests.sources.tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return Target.load(str(tiny_target_folder), dtype="float32", backend="torch")


def worker(folder: Path, target: Target, sent: Sequence[Recorded] = (), **more: object) -> Worker:
    """One that has read its options, and will read what was sent."""
    pipe = io.BytesIO()
    send(pipe, told(folder, target, **more))
    for one in sent:
        send_conversation(pipe, one)
    pipe.seek(0)
    return Worker(pipe, io.StringIO())


def said(made: Worker) -> list[dict[str, Any]]:
    out = made._out
    assert isinstance(out, io.StringIO)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def of(name: str, gain: float, error: float = 0.1) -> TauDifference:
    return TauDifference(name, 9, (2.0, 2.0 + gain), gain - 1.96 * error, gain + 1.96 * error)


class Student:
    """Says what it is told to, and counts how often it was told to begin again."""

    steps = 5

    def __init__(self, losses: Sequence[float | None] = (), found: Sequence[TauDifference] = ()) -> None:
        self.losses, self.found, self.begun = iter(losses), list(found), 0

    def step(self) -> float | None:
        loss = next(self.losses)
        if loss == -math.inf:
            raise DataError("the gradient isn't finite")
        return loss

    def measure(self) -> list[TauDifference]:
        return self.found

    def begin_again(self) -> None:
        self.begun += 1


@pytest.mark.parametrize("quantization", [None, "none"])
def test_the_process_loads_the_target_that_serves_from_its_gguf_file(
    tiny_target_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quantization: Quantization | None,
) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tiny_target_folder, tmp_path / "model.gguf", quantised="Q8_0")
    serving = Target.load(str(file), backend="torch", quantization=quantization)
    made = worker(tmp_path / "learned", serving)
    assert made._target.place == file
    assert made._target.revision == serving.revision
    assert torch.equal(made._lm_head, serving.ends.lm_head)


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, 50.0], ids=["nan", "inf", "gradient", "explosion"]
)
def test_after_a_bad_step_training_begins_again_from_what_serves(
    target: Target, tmp_path: Path, bad: float
) -> None:
    made = worker(tmp_path, target)
    student = made._student = Student([4.0, None, 4.2, bad, 4.0])  # type: ignore[assignment]
    for _ in range(3):
        made._step()
    assert student.begun == 0
    made._step()
    assert student.begun == 1
    assert [one["kind"] for one in said(made)] == ["setback"]
    made._step()
    assert student.begun == 1


def test_where_it_diverges_again_and_again_learning_stops(target: Target, tmp_path: Path) -> None:
    made = worker(tmp_path, target)
    made._student = Student([math.nan] * 9)  # type: ignore[assignment]
    for _ in range(4):
        made._step()
    with pytest.raises(DataError, match="5 times in a row"):
        made._step()
    assert len(said(made)) == 4


@pytest.mark.parametrize(
    "found",
    [
        [of("", 0.01)],
        [of("", 0.15)],
        [of("", -1.0)],
        [of("", 0.5), of("a", 1.0), of("b", -0.5)],
    ],
    ids=["no gain", "not sure", "worse", "one client loses"],
)
def test_only_a_sure_gain_that_costs_no_client_becomes_a_version(
    target: Target, tmp_path: Path, found: list[TauDifference]
) -> None:
    made = worker(tmp_path / "learned", target)
    made._student = Student(found=found)  # type: ignore[assignment]
    made._measure()
    (measured,) = said(made)
    assert measured["kind"] == "measured"
    assert measured["worse"] == ("b" if len(found) > 1 else None)
    assert Versions(tmp_path / "learned").cards() == []


def test_one_that_does_worse_three_times_begins_again(target: Target, tmp_path: Path) -> None:
    made = worker(tmp_path, target)
    student = made._student = Student(found=[of("", -1.0)])  # type: ignore[assignment]
    for _ in range(3):
        made._measure()
    assert student.begun == 1


def conversation(target: Target, group: str, *, greedy: bool, bad: float = 0.0) -> Recorded:
    """Random tokens and states."""
    width = target.config.hidden_size
    features, states = torch.randn(8, 3 * width), torch.randn(31, 4 * width)
    states[3, 5] += bad
    ids = torch.randint(6, target.config.vocab_size, (40,)).tolist()
    return Recorded(group, ids, features.bfloat16(), states.bfloat16(), greedy)


@contextmanager
def no_exit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    yield codes


def test_what_cannot_be_learnt_from_is_not_taken_in(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [
        conversation(target, "good", greedy=True),
        conversation(target, "bad", greedy=True, bad=math.nan),
        conversation(target, "random", greedy=False),
    ]
    made = worker(tmp_path, target, sent)
    with no_exit(monkeypatch) as codes:
        made._read()
    assert codes == [0]  # the pipe's end is the server's
    ring = made._ring
    assert [info.category for name in ("train", "heldout") for info in ring.split(name)] == ["good"]
    assert made._unlikely == 1


def test_with_privacy_the_loss_leaves_out_what_the_filter_finds(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "You may write to jane.roe@acme-widgets.com at any time"
    ids = target.tokenizer.encode(text, add_special_tokens=False)
    one = conversation(target, "a", greedy=True)
    states = torch.randn(len(ids) - 1, one.answer_states.shape[1]).bfloat16()
    sent = one._replace(token_ids=[*one.token_ids[:8], *ids], answer_states=states)
    kept = {}
    for privacy in (False, True):
        made = worker(tmp_path, target, [sent], privacy=privacy)
        with no_exit(monkeypatch):
            made._read()
        (sample,) = made._ring.read_many(made._ring.split("heldout"))
        kept[privacy] = target.tokenizer.decode(sample.token_ids[sample.loss_mask.bool()].tolist())
    assert "jane.roe@acme-widgets.com" in kept[False]
    assert "widgets" not in kept[True]
    assert "at any time" in kept[True]
