"""How much a reader visits who follows a round. The bounds are today's figures: lower them with each change."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fledge
from fledge.engine import Engine, SamplingParams, TreeShape
from fledge.engine.rounds import torch as definition
from fledge.target.target import Target
from tests.engine.conftest import noisy_head
from tests.test_layout import dependencies, reached_from
from tests.tiny import TinyShape, save_tiny_target

SOURCE = Path(fledge.__file__).parent
PENALTY = {"repetition_penalty": 1.3}
# By where models run and what requests want: files that a step of decoding enters.
MOST_FILES = [
    pytest.param("native", {}, 21, marks=pytest.mark.kernels),
    pytest.param("native", PENALTY, 30, marks=pytest.mark.kernels),
    ("torch", {}, 35),
    ("torch", PENALTY, 38),
]
# Of rounds/torch.py and all of the engine's files that it imports, directly or not.
MOST_LINES = 1045  # some 45 of them say who proposed a token


@pytest.mark.parametrize(("backend", "options", "most"), MOST_FILES)
def test_a_step_of_decoding_enters_few_files(
    tmp_path: Path, backend: Any, options: dict[str, Any], most: int
) -> None:
    folder = save_tiny_target(
        tmp_path / "llama", shape=TinyShape(layers=3, heads=2, kv_heads=1, positions=256)
    )
    target = Target.load(str(folder), backend=backend)
    engine = Engine(target, noisy_head(target), tree=TreeShape(3, 2, 6))
    for prompt in ([5, 6, 7], [8, 9]):
        engine.submit(prompt, SamplingParams(max_tokens=200, ignore_eos=True, **options))
    for _ in range(10):  # prefill, and rounds that build what later ones reuse
        engine.step()
    entered = [files_of_a_step(engine) for _ in range(20)]
    assert engine.stats().running == 2
    largest = max(entered, key=len)
    assert len(largest) <= most, ", ".join(sorted(largest))


def files_of_a_step(engine: Engine) -> set[str]:
    entered = set()

    def enter(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (path := Path(frame.f_code.co_filename)).is_relative_to(SOURCE):
            entered.add(str(path.relative_to(SOURCE)))

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        engine.step()
    finally:
        sys.setprofile(before)
    return entered


def test_what_a_round_is_is_read_in_few_lines() -> None:
    within = {m: {n for n in names if n.startswith("fledge.engine.")} for m, names in dependencies().items()}
    reached = reached_from(definition.__name__, within) | {definition.__name__}
    files = [SOURCE.parent / f"{module.replace('.', '/')}.py" for module in reached]
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= MOST_LINES, ", ".join(
        sorted(reached)
    )
