"""Serving with a process that learns beside it: answers stay those of plain decode, whatever becomes of the process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fledge.engine import Engine, SamplingParams
from fledge.learn import Learning, LearnOptions, Versions
from fledge.target.target import Target
from fledge.train.options import TrainOptions
from tests.learn.test_record import serve

pytestmark = pytest.mark.kernels
PARAMS = SamplingParams(max_tokens=48, ignore_eos=True)
TRAIN = TrainOptions(
    ttt_steps=3, batch_tokens=512, draft_vocab_size=256, ema=0.9, dtype="float32", learning_rate=3e-3
)


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return Target.load(str(tiny_target_folder), backend="native")


def options(folder: Path, **more: object) -> LearnOptions:
    quick: dict[str, object] = {
        "memory": 16 << 20,
        "heldout": 0.25,
        "heldout_tokens": 1000,
        "start_tokens": 500,
        "measure_every": 5,
        "passes": 1000.0,
        "lowest": False,
        "train": TRAIN,
    }
    return LearnOptions(folder=str(folder), **{**quick, **more})  # type: ignore[arg-type]


@contextmanager
def learning(target: Target, wanted: LearnOptions) -> Iterator[tuple[Learning, Engine]]:
    made = Learning(target, wanted)
    engine = Engine(target, made.head, max_batch=4, recorder=made)
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
    target: Target, prompts: list[list[int]], tmp_path: Path
) -> None:
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
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    for data in [*written, json.dumps(state).encode()]:
        assert planted.encode() not in data
        assert ", ".join(map(str, ids)).encode() not in data
        assert b"".join(i.to_bytes(4, "little") for i in ids) not in data


def test_where_the_process_is_killed_serving_goes_on_and_says_so_once(
    target: Target, prompts: list[list[int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = serve(Engine(target), prompts, PARAMS)
    with learning(target, options(tmp_path)) as (made, engine):
        for prompt in prompts[:2]:
            engine.submit(prompt, PARAMS, record="a")
        until(lambda: made.state()["state"] == "paused", lambda: None)
        while engine.busy:
            engine.step()
        until(lambda: made.state()["state"] == "learning", lambda: None)
        assert made._process is not None
        made._process.kill()
        until(lambda: made.state()["why"], lambda: None)
        for _ in range(2):
            assert serve(engine, prompts, PARAMS, group="a") == expected
        assert made.state()["state"] == "stopped"
    assert sum("learning stops, serving goes on" in record.message for record in caplog.records) == 1


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


def test_a_killed_server_leaves_no_process_behind_not_even_a_stopped_one(tmp_path: Path) -> None:
    script = (
        "import os, signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0)\n"
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
