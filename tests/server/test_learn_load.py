"""A server that learns under load: 10,000 requests of which a fifth disconnect, while heads change."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import aiohttp
import pytest

from fledge.engine import Engine
from fledge.learn import Learning
from fledge.target.target import Target
from tests.learn.test_learning import options
from tests.server.conftest import Running, running, wait_for

REQUESTS, AT_ONCE, PROMPTS = 10_000, 12, 40
# What memory may grow by in the last quarter; before that a step's memory is still reaching its size.
ROOM = 48 << 20


@pytest.mark.slow
@pytest.mark.kernels
def test_no_answer_is_wrong_or_lost_and_memory_stays_flat(tiny_target_folder: Path, tmp_path: Path) -> None:
    target, rng = Target.load(str(tiny_target_folder), backend="native"), random.Random(0)
    prompts = [[rng.randrange(6, 512) for _ in range(rng.randint(4, 30))] for _ in range(PROMPTS)]
    learning = Learning(target, options(tmp_path, share=0.5, memory_mb=8, measure_every=10))
    engine = Engine(target, learning.head, max_batch=AT_ONCE, max_context=128, recorder=learning)
    with running(engine) as server:
        free = server.free_pages
        asked = [body(prompt, number) for number, prompt in enumerate(prompts)]
        expected = [
            server.post("/v1/completions", {**one, "stream": False, "speculate": False}).json()["choices"][0][
                "text"
            ]
            for one in asked
        ]
        asyncio.run(load(server, asked, expected, 3 * REQUESTS // 4, rng))
        early = resident(learning)
        asyncio.run(load(server, asked, expected, REQUESTS - 3 * REQUESTS // 4, rng))
        late = resident(learning)
        state = server.get("/v1/learn").json()
        wait_for(lambda: not engine.busy)
        engine.check()
        assert server.free_pages <= free
    assert state["why"] is None or state["why"].startswith("requests run, ")  # it neither failed nor starved
    assert state["swaps"] > 0
    assert state["conversations"] + state["left_out"] > REQUESTS / 2
    for name in early:
        assert late[name] - early[name] < ROOM, name


def body(prompt: list[int], number: int) -> dict[str, object]:
    """Half of them are sampled."""
    sampling = {"temperature": 1.0, "seed": number} if number % 2 else {"temperature": 0.0}
    return {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "stream": True, **sampling}


async def load(
    server: Running, asked: list[dict[str, object]], expected: list[str], requests: int, rng: random.Random
) -> None:
    """Send so many; a fifth goes away after a random number of pieces, all others get their whole answer."""
    numbers = iter([rng.randrange(len(asked)) for _ in range(requests)])

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            leave_after = rng.randrange(8) if rng.random() < 0.2 else None
            async with session.post(f"{server.url}/v1/completions", json=asked[number]) as response:
                assert response.status == 200
                pieces: list[str] = []
                async for line in response.content:
                    if len(pieces) == leave_after:
                        response.close()
                        break
                    if line.startswith(b"data: {"):
                        pieces += [choice["text"] for choice in json.loads(line[6:])["choices"]]
                else:
                    assert "".join(pieces) == expected[number]
                    assert line.strip() == b"" or b"[DONE]" in line

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        await asyncio.gather(*(client(session) for _ in range(AT_ONCE)))


def resident(learning: Learning) -> dict[str, int]:
    """Bytes of the server, which is this process, and of the one beside it."""
    assert learning._process is not None
    pages = {
        name: int(Path(f"/proc/{number}/statm").read_text().split()[1])
        for name, number in (("server", "self"), ("learning", learning._process.pid))
    }
    return {name: 4096 * count for name, count in pages.items()}
