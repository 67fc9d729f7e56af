"""Serving with a process that learns beside it: answers stay those of plain decode, whatever becomes of the process."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fledge.engine import Engine, SamplingParams, TreeShape
from fledge.learn import Learning, LearnOptions, Versions
from fledge.target.target import Target
from fledge.train.options import TrainOptions
from tests.engine.conftest import noisy_head
from tests.learn.planted import assert_none_holds, files_below
from tests.learn.test_change_head import spoiled
from tests.learn.test_record import serve
from tests.learn.test_versions import CARD

pytestmark = pytest.mark.kernels
PARAMS = SamplingParams(max_tokens=48, ignore_eos=True)
TRAIN = TrainOptions(ttt_steps=3, batch_tokens=512, draft_vocab_size=256, dtype="float32", learning_rate=3e-3)


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return Target.load(str(tiny_target_folder), backend="native")


def options(folder: Path, **more: object) -> LearnOptions:
    quick: dict[str, object] = {
        "memory_mb": 16,
        "heldout": 0.25,
        "heldout_tokens": 1000,
        "start_tokens": 500,
        "measure_every": 5,
        "passes": 1000.0,
        "train": TRAIN,
        "average": 0.9,
    }
    return LearnOptions(folder=str(folder), **{**quick, **more})  # type: ignore[arg-type]


def told(folder: Path, target: Target, **more: object) -> dict[str, object]:
    """The first message to a learning process."""
    return Learning(target, options(folder, **more))._start_message()


@contextmanager
def learning(
    target: Target, wanted: LearnOptions, tree: TreeShape | None = None
) -> Iterator[tuple[Learning, Engine]]:
    made = Learning(target, wanted)
    engine = Engine(target, made.head, max_batch=4, recorder=made, tree=tree)
    made.start(engine)
    try:
        yield made, engine
    finally:
        made.close()


def until(condition: Callable[[], object], meanwhile: Callable[[], object], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        meanwhile()
        time.sleep(0.3)


def test_it_learns_and_swaps_and_no_file_holds_a_text_of_the_traffic(
    target: Target, prompts: list[list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    planted = "zyxquark-4711"
    prompts = [*prompts, target.chat.prompt_ids([{"role": "user", "content": planted * 2}])]
    expected = serve(Engine(target), prompts, PARAMS)
    with learning(target, options(tmp_path / "learned")) as (made, engine):
        assert made.version is None
        for _ in range(8):
            assert serve(engine, prompts, PARAMS, group="a") == expected
        until(lambda: made.swaps, lambda: None)
        assert serve(engine, prompts, PARAMS, group="a") == expected
        state = made.state()
        assert state["versions"][0]["tau"] > 1.02
        assert state["versions"][0]["before"] == 1.0
        assert state["curve"]
    assert (
        Learning(target, options(tmp_path / "learned")).version == Versions(tmp_path / "learned").to_serve()
    )
    ids = target.tokenizer.encode(planted, add_special_tokens=False)
    written = files_below(tmp_path)
    assert len(written) > 3
    seen = [*written, json.dumps(state).encode(), caplog.text.encode()]
    assert_none_holds(seen, ids, planted)
    for whole in expected:  # nor any answer
        assert_none_holds(seen, whole[-10:])


def test_where_the_process_is_killed_serving_goes_on_and_says_so_once(
    target: Target, prompts: list[list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = serve(Engine(target), prompts, PARAMS)
    with learning(target, options(tmp_path)) as (made, engine):
        until(lambda: made.state()["state"] == "collecting", lambda: None)
        assert "are needed to begin" in made.state()["why"]
        for _ in range(4):
            serve(engine, prompts, PARAMS, group="a")
        until(lambda: made.state()["state"] == "training", lambda: None)
        assert made._process is not None
        made._process.kill()
        until(lambda: made.state()["state"] == "stopped", lambda: None)
        for _ in range(2):
            assert serve(engine, prompts, PARAMS, group="a") == expected
        assert made.state()["state"] == "stopped"
    assert sum("learning stops, serving goes on" in record.message for record in caplog.records) == 1


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_stops_learning_alone(
    target: Target, prompts: list[list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, expected = tmp_path / "learned", serve(Engine(target), prompts, PARAMS)
    with learning(target, options(folder)) as (made, engine):
        folder.rmdir()
        folder.touch()  # as a full disk: the process can't write its first version
        for _ in range(8):
            serve(engine, prompts, PARAMS, group="a")
        until(lambda: made._why, lambda: None)
        folder.unlink()
        assert serve(engine, prompts, PARAMS) == expected
    assert "learning stops, serving goes on" in caplog.text


def test_a_folder_that_cannot_be_made_leaves_serving_as_it_is(
    target: Target, prompts: list[list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with learning(target, options(tmp_path / "file" / "learned")) as (made, engine):
        assert serve(engine, prompts, PARAMS, group="a") == serve(Engine(target), prompts, PARAMS)
        assert made.state()["state"] == "stopped"
    assert sum("learning stops, serving goes on" in record.message for record in caplog.records) == 1


@pytest.mark.slow
def test_where_memory_runs_out_learning_stops_with_one_line(
    target: Target, prompts: list[list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = serve(Engine(target), prompts, PARAMS)
    with learning(target, options(tmp_path)) as (made, engine):
        until(lambda: made.figures()["state"] != "starting", lambda: None)
        assert made._process is not None
        resource.prlimit(made._process.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
        for _ in range(8):
            serve(engine, prompts, PARAMS, group="a")
        until(lambda: made._why, lambda: None)
        assert serve(engine, prompts, PARAMS, group="a") == expected
    assert sum("learning stops, serving goes on" in record.message for record in caplog.records) == 1


def test_nothing_is_taken_in_of_clients_that_are_excluded(
    target: Target, prompts: list[list[int]], tmp_path: Path
) -> None:
    with learning(target, options(tmp_path, excluded=("quiet",))) as (made, engine):
        serve(engine, prompts, PARAMS, group="quiet")
        serve(engine, prompts[:3], PARAMS, group="a")
        until(lambda: made.figures()["conversations"] >= 3, lambda: None)
        assert made.figures()["conversations"] == 3


@pytest.mark.parametrize("disk_is_full", [False, True])
def test_where_acceptance_falls_the_version_before_serves_again(
    target: Target,
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    disk_is_full: bool,
) -> None:
    def full(self: Versions, number: int) -> None:
        raise OSError(28, "No space left on device")

    versions, expected = Versions(tmp_path), serve(Engine(target), prompts, PARAMS)
    versions.add(noisy_head(target), CARD)
    wanted = options(tmp_path, start_tokens=1 << 30)
    with learning(target, wanted, TreeShape(3, 1, 4)) as (made, engine):
        for rounds in range(30, 60):  # as requests would: no head of so small a target does well
            made._live.add(rounds, rounds)
        versions.add(spoiled(noisy_head(target)), CARD)
        if disk_is_full:
            monkeypatch.setattr(Versions, "mark_rolled_back", full)
        made._swap(2)
        assert made.version == 2
        for rounds in range(30, 60):
            made._live.add(0, rounds)
        until(lambda: made.rollbacks, lambda: None)
        assert serve(engine, prompts, PARAMS, group="a") == expected
        assert (made.version, made.rollbacks, made.figures()["why"]) == (1, 1, None)
    assert versions.to_serve() == (2 if disk_is_full else 1)
    assert ("No space left" in caplog.text) == disk_is_full


def test_a_killed_server_leaves_no_process_behind_not_even_a_stopped_one(tmp_path: Path) -> None:
    script = (
        "import os, signal, subprocess, sys, time\n"
        "wait = [sys.executable, '-c', 'import sys; sys.stdin.read()']\n"  # where hangups are ignored, as by nohup
        "child = subprocess.Popen(wait, stdin=subprocess.PIPE, process_group=0)\n"
        "child.send_signal(signal.SIGSTOP)\n"
        "os.waitpid(child.pid, os.WUNTRACED)\n"  # until it has stopped
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as server:
        assert server.stdout is not None
        child = int(server.stdout.readline())
        server.send_signal(signal.SIGKILL)
        server.wait()
    until(lambda: not alive(child), lambda: None, 10)


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
