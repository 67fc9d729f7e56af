"""Every valid body is answered, and its stream adds up to its whole answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fledge.engine import Engine, TreeShape
from fledge.server.options import ServerOptions
from fledge.target import Target
from tests.engine.conftest import noisy_head
from tests.server.conftest import MODEL, Running, running, wait_for
from tests.server.taught import TEMPLATES
from tests.server.valid_bodies import ROUTES
from tests.tiny import TinyShape, save_tiny_target

_MEMORY_MB = 64  # that answers may add once the server has answered some; caches fill up to their bounds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its target knows tools and reasoning, its head is right at times."""
    folder = tmp_path_factory.mktemp("valid") / "llama"
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=1024)
    save_tiny_target(folder, shape=shape, chat_template=TEMPLATES["hermes"])
    target = Target.load(str(folder), dtype="float32", backend="torch")
    engine = Engine(target, noisy_head(target), tree=TreeShape(3, 2, 6), max_batch=4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is faster so
    with running(engine, ServerOptions(port=0, model_names=(MODEL,), reasoning_parser="qwen3")) as started:
        yield started
    torch.set_num_threads(threads)


def answer_all(server: Running, bodies: int, part: int = 0) -> None:
    """Send so many bodies, shared out over all routes, each whole and as a stream; other ones in each part."""

    @seed(part + 100 * int(os.environ.get("VALID_BODIES", "0")))
    @settings(
        max_examples=bodies,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(path=st.sampled_from(list(ROUTES)), data=st.data())
    def one(path: str, data: st.DataObject) -> None:
        route = ROUTES[path]
        body = data.draw(route.bodies)
        whole, stream = (server.post(path, {**body, "stream": wanted}) for wanted in (False, True))
        assert (whole.status_code, stream.status_code) == (200, 200), whole.text + stream.text
        assert route.stream(stream.text) == route.whole(whole.json())

    one()
    wait_for(lambda: server.server.worker.unfinished == 0)
    pool = server.server.engine._core._pool
    assert pool.free_pages == pool.pages - 1


def memory_mb() -> float:
    """What this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_valid_bodies_are_answered_alike_whole_and_as_streams(server: Running) -> None:
    answer_all(server, 25)


@pytest.fixture(scope="module")
def grown() -> Callable[[], float]:
    """Megabytes since the first call."""
    before: list[float] = []

    def since() -> float:
        before.append(memory_mb())
        return before[-1] - before[0]

    return since


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("part", range(1, 11))
def test_ten_thousand_valid_bodies(server: Running, grown: Callable[[], float], part: int) -> None:
    """VALID_BODIES=1, 2, ...: ten thousand others."""
    answer_all(server, 1000, part)
    assert grown() < _MEMORY_MB
