"""`fledge serve` as a process of its own: it starts, serves, and ends at a signal with its answers finished."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.server.conftest import HTTP


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    command = [
        sys.executable,
        "-c",
        "from fledge.commands.main import main; main()",
        "serve",
        str(folder),
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        [*command, "--max-context", "512", *arguments],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "FLEDGE_NATIVE": "0", **environment},
    )  # fmt: skip
    assert process.stderr is not None
    told = ""
    for line in process.stderr:
        told += line
        if "serving" in line:
            break
    address = re.search(r"http://[0-9.]+:[0-9]+", told)
    assert address, told
    drained = threading.Thread(target=process.stderr.read)  # the pipe must not fill up
    drained.start()
    try:
        yield process, address.group()
    finally:
        process.kill()
        process.wait()
        drained.join()


def terminate_under_load(
    process: subprocess.Popen[str], url: str, ask: Callable[[], None], *, once: str, patience: float
) -> None:
    """Ask in 12 threads, send SIGTERM once some request is `once`: running or waiting, and expect a clean end."""
    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    while re.search(rf"vllm:num_requests_{once}\{{[^}}]*\}} 0\.0", HTTP.get(f"{url}/metrics").text):
        pass
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(patience)
    assert process.wait(60) == 0


@pytest.mark.slow
def test_sigterm_under_load_finishes_every_answer(tiny_target_folder: Path) -> None:
    body = {"prompt": [40, 50, 60], "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    with serving(tiny_target_folder, "--max-batch", "4", "--dtype", "float32", "--log-format", "json") as (
        process,
        url,
    ):
        expected = HTTP.post(f"{url}/v1/completions", json=body).json()["choices"][0]["text"]
        answers: list[str | int] = []

        def ask() -> None:
            response = HTTP.post(f"{url}/v1/completions", json=body)
            whole = response.status_code == 200
            answers.append(response.json()["choices"][0]["text"] if whole else response.status_code)

        terminate_under_load(process, url, ask, once="running", patience=120)
    assert len(answers) == 12
    assert set(answers) <= {expected, 503}  # those that came too late were told so
    assert expected in answers


@pytest.mark.slow
def test_sigterm_ends_streams_that_take_too_long_with_an_error(tiny_target_folder: Path) -> None:
    body = {"prompt": [40, 50, 60], "max_tokens": 480, "ignore_eos": True, "temperature": 0, "stream": True}
    limits = ("--max-batch", "2", "--dtype", "float32", "--drain-timeout", "0.5")
    with serving(tiny_target_folder, *limits) as (process, url):
        ends: list[str] = []

        def ask() -> None:
            with HTTP.stream("POST", f"{url}/v1/completions", json=body) as response:
                ends.append(response.read().decode())

        terminate_under_load(process, url, ask, once="waiting", patience=60)
    assert len(ends) == 12
    finished = [end for end in ends if '"finish_reason":"length"' in end and end.endswith("data: [DONE]\n\n")]
    # A stream says so in an event, a request that still waited in a whole reply, which is spaced.
    told = [end for end in ends if re.search('"code": ?"shutting_down"', end)]
    assert len(finished) + len(told) == 12
    assert told  # two at a time can't all be done in half a second


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(tiny_target_folder: Path) -> None:
    """Without native kernels here; in them an end of Python would crash."""
    body = {"prompt": [40, 50, 60], "max_tokens": 480, "ignore_eos": True, "stream": True}
    with serving(tiny_target_folder, "--dtype", "float32", "--drain-timeout", "600", FLEDGE_NATIVE="1") as (
        process,
        url,
    ):
        with suppress(httpx.HTTPError), HTTP.stream("POST", f"{url}/v1/completions", json=body) as response:
            for sent, _ in enumerate(response.iter_lines()):
                if sent < 2:
                    process.send_signal(signal.SIGINT)
                    time.sleep(0.1)
        assert process.wait(20) == 128 + signal.SIGINT


@pytest.mark.slow
def test_a_server_is_restarted_on_its_port_at_once(tiny_target_folder: Path) -> None:
    port = "0"
    for _ in range(2):
        with serving(tiny_target_folder, "--dtype", "float32", "--port", port) as (process, url):
            port = url.rpartition(":")[2]
            last = {"connection": "close"}  # so that the server closes first
            assert HTTP.get(f"{url}/health", headers=last).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.slow
def test_vertex_and_keys_through_the_environment(tiny_target_folder: Path) -> None:
    environment = {
        "FLEDGE_API_KEYS": "key-of-the-tests",
        "AIP_HEALTH_ROUTE": "/alive",
        "AIP_PREDICT_ROUTE": "/predict",
    }
    with serving(tiny_target_folder, **environment) as (_, url):
        assert HTTP.get(f"{url}/alive").status_code == 200
        body = {"instances": [{"prompt": "Hi"}]}
        assert HTTP.post(f"{url}/predict", json=body).status_code == 401
        headers = {"authorization": "Bearer key-of-the-tests"}
        assert len(HTTP.post(f"{url}/predict", json=body, headers=headers).json()["predictions"]) == 1
