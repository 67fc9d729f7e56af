"""A real server of a tiny target, with a head that knows some answers, on a port of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import torch
import uvicorn

from fledge.engine import Engine, TreeShape
from fledge.server.app import create_app
from fledge.server.generation import Server
from fledge.server.launch import DrainingServer, bind, listen
from fledge.server.options import ServerOptions
from fledge.target.target import Target
from tests.engine.context_head import ContextHead
from tests.tiny import TinyShape, save_tiny_target

MODEL = "tiny"
HTTP = httpx.Client(
    timeout=120, trust_env=False, verify=False, limits=httpx.Limits(max_keepalive_connections=4)
)
TARGET = "/models/tiny"  # as its user named it
OPTIONS = ServerOptions(port=0, target=TARGET, model_names=(MODEL, "other-name"))


@dataclass
class Running:
    """A server in a thread of this process."""

    url: str
    server: Server
    http: DrainingServer
    loop: asyncio.AbstractEventLoop

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def post(self, path: str, body: object = None, **more: object) -> httpx.Response:
        return HTTP.post(self.url + path, json=body, **more)  # type: ignore[arg-type]

    def get(self, path: str, **more: object) -> httpx.Response:
        return HTTP.get(self.url + path, **more)  # type: ignore[arg-type]

    def connect(self) -> socket.socket:
        """A connection that the test writes to by hand."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=20)

    @property
    def free_pages(self) -> int:
        return self.server.engine._core._pool.free_pages


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


@contextmanager
def running(engine: Engine, options: ServerOptions = OPTIONS) -> Iterator[Running]:
    """Serve until the block ends."""
    listener = bind(options)
    listen(listener)
    app = create_app(engine, options)
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="on", log_config=None)
    http = DrainingServer(config, app.state.server)
    thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]})
    thread.start()
    while not http.started:
        assert thread.is_alive(), "the server didn't start"
        threading.Event().wait(0.01)
    host, port = listener.getsockname()[:2]
    try:
        yield Running(f"http://{host}:{port}", app.state.server, http, http._loop)
    finally:
        http.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server didn't stop"


@contextmanager
def running_template(folder: Path, template: str, positions: int = 2048) -> Iterator[Running]:
    """A server of a tiny target with another chat template."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=positions)
    save_tiny_target(folder, shape=shape, chat_template=template, dtype=torch.float32)
    target = Target.load(str(folder), dtype="float32", backend="torch")
    with running(Engine(target, max_batch=2), ServerOptions(port=0, model_names=(MODEL,))) as server:
        yield server


def chunks(stream: str) -> list[dict[str, Any]]:
    """A stream's chunks, which are followed by [DONE]."""
    lines = stream.strip().split("\n\n")
    assert lines[-1] == "data: [DONE]", lines[-1]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Three layers, hidden 64, vocabulary 512, 512 positions, float32."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=512)
    folder = save_tiny_target(tmp_path_factory.mktemp("server") / "llama", shape=shape)
    return Target.load(str(folder), dtype="float32", backend="torch")


QUESTIONS = ["Why is the sky blue?", "Tell me a story about the sea.", "How many apples are there?", "Hi"]


@pytest.fixture(scope="session")
def plain(target: Target) -> Engine:
    """Plain decode: the truth."""
    return Engine(target, max_batch=8)


@pytest.fixture(scope="session")
def make_engine(target: Target, plain: Engine) -> Callable[..., Engine]:
    """Engines whose head proposes the greedy answers to QUESTIONS."""
    answers = plain.generate(QUESTIONS, max_tokens=120, ignore_eos=True)

    def make(**limits: int) -> Engine:
        head = ContextHead(target.decoder.page_size, 512, 0.8)
        head.strict = False
        head.learn([*answer.prompt_token_ids, *answer.token_ids] for answer in answers)
        return Engine(target, head, tree=TreeShape(3, 3, 8), **{"max_batch": 8, "prefill_rows": 96, **limits})

    return make


@pytest.fixture(scope="session")
def live(make_engine: Callable[..., Engine]) -> Iterator[Running]:
    """A speculative server for everybody; leave it idle."""
    with running(make_engine()) as server:
        yield server


@pytest.fixture
def options() -> Callable[..., ServerOptions]:
    """The tests' options with changes."""

    def change(**changes: object) -> ServerOptions:
        return OPTIONS.changed(**changes)

    return change
