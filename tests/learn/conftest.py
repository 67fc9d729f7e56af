"""Tiny targets whose serving is recorded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from fledge.engine.record import Recorded, Tape
from fledge.target.target import Target

VOCABULARY = 512


class Notes:
    """A recorder that keeps everything."""

    def __init__(self) -> None:
        self.recorded: list[Recorded] = []

    def before_step(self) -> None: ...

    def finished(self, tape: Tape, token_ids: Sequence[int]) -> None:
        done = tape.recorded(token_ids)
        if done is not None:
            self.recorded.append(done)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture(scope="session", params=["torch", pytest.param("native", marks=pytest.mark.kernels)])
def target(request: pytest.FixtureRequest, tiny_target_folder: Path) -> Target:
    """Eight layers, hidden 64: float32 in torch, bf16 on the kernels."""
    backend = request.param
    dtype = "float32" if backend == "torch" else "bfloat16"
    return Target.load(str(tiny_target_folder), dtype=dtype, backend=backend)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(6, VOCABULARY) for _ in range(rng.choice([3, 17, 40]))] for _ in range(8)]
