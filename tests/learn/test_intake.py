"""What waits for the learning process is bounded, and nothing waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fledge.engine.params import SamplingParams
from fledge.engine.record import Tape
from fledge.learn.intake import Intake
from fledge.learn.wire import frames

MEMORY = 1 << 24


def tape(tokens: int = 40) -> Tape:
    made = Tape.of("a", 8, SamplingParams())
    made.prefilled(0, torch.zeros(8, 3 * 32))
    made.decoded(torch.zeros(tokens - 9, 4 * 32))
    return made


@contextmanager
def stopped() -> Iterator[tuple[Intake, int]]:
    """One whose process reads nothing, and the pipe's other end."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        intake = Intake(pipe, MEMORY, lambda _: None)
        yield intake, reading
        intake.close()
        os.close(reading)
        intake._thread.join(30)


def test_while_the_process_is_stopped_no_more_than_a_share_waits_and_the_rest_is_counted() -> None:
    with stopped() as (intake, _):
        for _ in range(1000):
            intake.put(tape(), list(range(40)))
        assert intake.dropped > 800
        assert intake._waiting <= MEMORY // 8
        large = Tape.of("a", 8, SamplingParams())
        large.prefilled(0, torch.zeros(8, MEMORY // 8))
        before = intake.dropped
        intake.put(large, list(range(40)))
        assert intake.dropped == before + 1


def test_a_message_never_waits_for_room() -> None:
    with stopped() as (intake, reading):
        for _ in range(1000):
            intake.put(tape(), list(range(40)))
        sending = threading.Thread(target=intake.send, args=({"kind": "back"},), daemon=True)
        sending.start()
        sending.join(30)
        assert not sending.is_alive()
        with os.fdopen(os.dup(reading), "rb") as pipe:
            kinds = []
            for frame in frames(pipe):
                kinds.append(frame.facts["kind"])
                if kinds[-1] == "back":
                    break
    assert kinds.count("conversation") == len(kinds) - 1 > 100
