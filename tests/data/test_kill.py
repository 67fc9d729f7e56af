"""SIGKILL at random moments of `prompts` and `respond`: no record is lost or doubled, the files are the same."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fledge.data import PromptOptions, RespondOptions, make_prompts, read_conversations, read_prompts, respond
from fledge.engine import Engine
from fledge.target import Target
from tests.data.conftest import files_of
from tests.data.test_mixing import CHAT, CODE, sentences, write_lines

KILLS = 20


def in_a_process(work: Callable[[], object], seconds: float | None) -> tuple[bool, float]:
    """Do the work in a child; SIGKILL it after `seconds`. Returns whether it finished, and how long it was at it."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    if seconds is not None:
        while time.monotonic() - began < seconds and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            return True, time.monotonic() - began  # done and waited for
    try:
        _, status = os.waitpid(child, 0)
    except ChildProcessError:
        return True, time.monotonic() - began
    return status == 0, time.monotonic() - began


def leave_out_scratch(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(folder).items() if not name.endswith(".partial")}


@pytest.mark.slow
@pytest.mark.distributed
def test_twenty_random_kills_lose_and_double_nothing(target: Target, tmp_path: Path) -> None:
    rows = [{"turns": [text, "And then?"]} for text in (*sentences(CHAT, 60, 0), *sentences(CODE, 60, 1))]
    path = write_lines(tmp_path / "rows.jsonl", [*rows, rows[3], {"turns": 5}])
    options = PromptOptions(count=48, shard_size=4, sources=({"path": path, "licence": "own"},))
    answers = RespondOptions(max_new_tokens=12, shard_size=4, max_prompt_tokens=400)

    def prompts_of(folder: Path) -> Callable[[], object]:
        return lambda: make_prompts(target, None, options, str(folder / "prompts"))

    def answers_of(folder: Path) -> Callable[[], object]:
        engine = Engine(target, max_batch=4, max_context=512, kv_tokens=4096)
        return lambda: respond(
            target, engine, str(folder / "prompts"), answers, str(folder / "conversations")
        )

    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    rng = random.Random(7)
    kills = 0
    for stage in (prompts_of, answers_of):
        finished, lasted = in_a_process(stage(undisturbed), None)
        assert finished
        made = killed / ("prompts" if stage is prompts_of else "conversations")
        for _ in range(KILLS // 2):
            while in_a_process(stage(killed), rng.uniform(0, lasted / 4))[0]:
                shutil.rmtree(made)  # it was done before it could be killed: once more from the start
            kills += 1
        finished, _ = in_a_process(stage(killed), None)
        assert finished
    assert leave_out_scratch(killed) == leave_out_scratch(undisturbed)
    assert kills == KILLS
    ids = [prompt.prompt_id for prompt in read_prompts(str(killed / "prompts"))]
    answered = [conversation.prompt_id for conversation in read_conversations(str(killed / "conversations"))]
    assert len(ids) == len(set(ids)) == 48
    assert list(dict.fromkeys(answered)) == ids
