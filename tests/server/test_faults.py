"""Load and faults: full queues, leaving and slow clients, a failing engine, a signal; nothing is lost."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import psutil
import pytest

from fledge.engine import Engine
from fledge.server.options import ServerOptions
from tests.server.conftest import MODEL, QUESTIONS, Running, chunks, running, wait_for

MakeEngine = Callable[..., Engine]
MakeOptions = Callable[..., ServerOptions]


def chat(question: str, tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": True, **more}


def idle(server: Running) -> bool:
    return not server.server.worker.unfinished and not server.server.engine.busy


def hold_engine(server: Running, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Steps of the engine wait for the event."""
    gate, step = threading.Event(), server.server.engine.step
    monkeypatch.setattr(server.server.engine, "step", lambda: gate.wait(60) and step())
    return gate


def send(connection: socket.socket, body: dict[str, Any]) -> None:
    """Ask for a chat without waiting for the answer."""
    written = json.dumps(body).encode()
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(written), written)
    )


def in_threads(calls: list[Callable[[], Any]]) -> tuple[list[threading.Thread], list[Any]]:
    results: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        results[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    return threads, results


def test_a_full_queue_says_when_to_come_back(
    make_engine: MakeEngine, options: MakeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(make_engine(max_batch=1), options(max_queue=3)) as server:
        gate = hold_engine(server, monkeypatch)
        threads, results = in_threads([lambda: server.post("/v1/chat/completions", chat("Hi", 3))])
        wait_for(lambda: server.server.engine.busy)
        more, others = in_threads([lambda: server.post("/v1/chat/completions", chat("Hi", 3))] * 3)
        wait_for(lambda: server.server.worker.waiting == 3)
        refused = server.post("/v1/chat/completions", chat("Hi", 3))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "overloaded"
        gate.set()
        for thread in threads + more:
            thread.join(60)
        assert [result.status_code for result in results + others] == [200] * 4
        assert "overloaded" in server.get("/metrics").text


def test_a_client_that_leaves_while_it_waits_makes_room_in_the_queue(
    make_engine: MakeEngine, options: MakeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(make_engine(max_batch=1), options(max_queue=1)) as server:
        gate = hold_engine(server, monkeypatch)
        threads, results = in_threads([lambda: server.post("/v1/chat/completions", chat("Hi", 3))])
        wait_for(lambda: server.server.engine.busy)
        with server.connect() as connection:
            send(connection, chat("Hi", 3))
            wait_for(lambda: server.server.worker.waiting == 1)
        wait_for(lambda: server.server.worker.waiting == 0)  # the engine is still held
        more, others = in_threads([lambda: server.post("/v1/chat/completions", chat("Hi", 3))])
        wait_for(lambda: server.server.worker.waiting == 1)
        gate.set()
        for thread in threads + more:
            thread.join(60)
        assert [result.status_code for result in results + others] == [200, 200]


def test_a_short_queue_does_not_turn_away_what_the_batch_has_room_for(
    make_engine: MakeEngine, options: MakeOptions
) -> None:
    with running(make_engine(max_batch=8), options(max_queue=1)) as server:
        answer = server.post("/v1/chat/completions", chat("Hi", 3, n=9))
        assert len(answer.json()["choices"]) == 9
        assert server.post("/v1/chat/completions", chat("Hi", 3, n=10)).status_code == 400


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_everything_at_once(live: Running, stream: bool) -> None:
    free, left = live.free_pages, gone_clients(live)
    with live.connect() as connection:
        # So many tokens that a busy machine notices in time that the client has left.
        send(connection, chat("Hi", 400, stream=stream, n=8))
        wait_for(lambda: live.server.engine.busy)
    tokens = live.server.engine.stats().round_tokens
    wait_for(lambda: idle(live))
    assert live.server.engine.stats().round_tokens - tokens < 8 * 300
    assert live.free_pages == free
    wait_for(lambda: gone_clients(live) == left + 1)


def gone_clients(live: Running) -> float:
    """As the metrics count them."""
    (line,) = re.findall(r"^fledge:disconnects_total (.*)$", live.get("/metrics").text, re.MULTILINE)
    return float(line)


def test_a_slow_reader_holds_up_nobody_and_is_dropped_in_the_end(
    make_engine: MakeEngine, options: MakeOptions, plain: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    expected = plain.generate([QUESTIONS[0]], max_tokens=20, ignore_eos=True)[0].text
    with running(make_engine(), options(stall_timeout=2.0)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            slow.connect((host, int(port)))
            send(slow, chat("Hi", 400, stream=True, logprobs=True, top_logprobs=20, n=8))
            wait_for(lambda: server.server.engine.busy)
            quick = server.post("/v1/chat/completions", chat(QUESTIONS[0], 20)).json()
            assert quick["choices"][0]["message"]["content"] == expected
            wait_for(lambda: idle(server))  # its answers were made, or cancelled, though it reads nothing
            if sys.platform == "linux":
                wait_for(lambda: not connections_from(slow.getsockname()))
        assert "internal error" not in caplog.text


def connections_from(client: tuple[str, int]) -> list[Any]:
    """The server's ends of a client's connection; it serves in this process."""
    return [found for found in psutil.Process().net_connections("tcp") if found.raddr == client]


def test_a_failing_engine_fails_its_requests_and_serves_the_next(
    live: Running, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain.generate([QUESTIONS[0]], max_tokens=12, ignore_eos=True)[0].text
    free = live.free_pages
    step, steps = live.server.engine.step, iter(range(10**9))

    def fail_once() -> Any:
        at = next(steps)
        if at == 0:  # both are there before one can be finished
            wait_for(lambda: live.server.worker.unfinished == 2)
        if at == 4:
            raise RuntimeError("device lost")
        return step()

    monkeypatch.setattr(live.server.engine, "step", fail_once)
    threads, results = in_threads(
        [
            lambda: live.post("/v1/chat/completions", chat(QUESTIONS[0], 60)),
            lambda: live.post("/v1/chat/completions", chat(QUESTIONS[1], 60, stream=True)),
        ]
    )
    for thread in threads:
        thread.join(60)
    whole, streamed = results
    assert whole.status_code == 500
    assert whole.json()["error"]["code"] == "engine_failed"
    assert "engine_failed" in streamed.text
    assert live.get("/health").status_code == 200
    again = live.post("/v1/chat/completions", chat(QUESTIONS[0], 12)).json()
    assert again["choices"][0]["message"]["content"] == expected
    assert live.free_pages == free
    assert "fledge:engine_faults_total 1.0" in live.get("/metrics").text


def test_an_engine_that_always_fails_makes_the_server_unhealthy(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(make_engine()) as server:

        def broken() -> Any:
            raise RuntimeError("device lost")

        monkeypatch.setattr(server.server.engine, "step", broken)
        for _ in range(3):
            assert server.post("/v1/chat/completions", chat("Hi", 3)).status_code == 500
        health = server.get("/health")
        assert health.status_code == 503
        assert "restart this server" in health.json()["error"]["message"]


def test_requests_of_an_engine_that_cannot_be_reset_are_answered(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(make_engine()) as server:

        def broken(*_: Any) -> Any:
            raise RuntimeError("device lost")

        monkeypatch.setattr(server.server.engine._core, "_decode", broken)
        monkeypatch.setattr(server.server.engine, "reset", broken)
        for _ in range(3):
            assert server.post("/v1/chat/completions", chat("Hi", 3)).status_code == 500
        assert server.get("/health").status_code == 503
        monkeypatch.undo()
        assert server.post("/v1/chat/completions", chat("Hi", 3)).status_code == 500  # from the step before
        assert server.post("/v1/chat/completions", chat("Hi", 3)).status_code == 200
        assert server.get("/health").status_code == 200


def test_time_runs_out_with_a_proper_error(
    make_engine: MakeEngine, options: MakeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fledge.server.generation._STATUS_WAIT_S", 0.1)
    with running(make_engine(), options(request_timeout=0.3)) as server:
        gate = hold_engine(server, monkeypatch)
        response = server.post("/v1/chat/completions", chat("Hi", 3))
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "timeout"
        streamed = server.post("/v1/chat/completions", chat("Hi", 3, stream=True))
        assert '"code":"timeout"' in streamed.text
        gate.set()
        wait_for(lambda: idle(server))


def test_a_drain_finishes_what_runs_and_turns_away_the_rest(make_engine: MakeEngine, plain: Engine) -> None:
    expected = plain.generate(QUESTIONS, max_tokens=100, ignore_eos=True)
    with running(make_engine(max_batch=2)) as server:
        threads, results = in_threads(
            [lambda q=question: server.post("/v1/chat/completions", chat(q, 100)) for question in QUESTIONS]  # type: ignore[misc]
        )
        wait_for(lambda: server.server.worker.unfinished == len(QUESTIONS))
        server.http.handle_exit(15, None)
        turned_away = []
        while threads[-1].is_alive() and not turned_away:
            try:
                turned_away.append(server.post("/v1/chat/completions", chat("Hi", 3)))
            except httpx.TransportError:
                break
        for thread in threads:
            thread.join(60)
        assert [r.json()["choices"][0]["message"]["content"] for r in results] == [a.text for a in expected]
        for response in turned_away:
            assert response.status_code == 503
            assert "retry-after" in response.headers
        wait_for(lambda: server.http.should_exit)


def test_what_a_drain_cannot_finish_gets_an_error(
    make_engine: MakeEngine, options: MakeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(make_engine(), options(drain_timeout=0.2)) as server:
        gate = hold_engine(server, monkeypatch)
        threads, results = in_threads([lambda: server.post("/v1/chat/completions", chat("Hi", 50))])
        wait_for(lambda: server.server.engine.busy)
        server.http.handle_exit(15, None)
        threads[0].join(30)
        gate.set()
        assert results[0].status_code == 503
        assert results[0].json()["error"]["code"] == "shutting_down"


async def storm(
    server: Running, requests: int, concurrency: int, expected: dict[tuple[str, int], str]
) -> Counter[str]:
    """Many short requests; one in five leaves at a random moment. Counts what became of them."""
    found: Counter[str] = Counter()
    numbers = iter(range(requests))
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        rng = random.Random(number)
        question, tokens, stream = rng.choice(QUESTIONS), rng.choice([1, 3, 8, 16]), rng.random() < 0.5
        leaves = rng.random() < 0.2
        body = chat(question, tokens, stream=stream)

        async def read() -> str:
            async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
                text = (await response.aread()).decode()
            assert response.status_code == 200, text
            if not stream:
                return json.loads(text)["choices"][0]["message"]["content"]  # type: ignore[no-any-return]
            return "".join(part["choices"][0]["delta"].get("content", "") for part in chunks(text))

        try:
            answer = await asyncio.wait_for(read(), rng.random() * 0.05 if leaves else 300)
            found["right" if answer == expected[question, tokens] else "wrong"] += 1
        except TimeoutError:
            found["left" if leaves else "lost"] += 1

    async def work(client: httpx.AsyncClient) -> None:
        for number in numbers:
            await one(client, number)

    async with httpx.AsyncClient(limits=limits, timeout=300) as client:
        await asyncio.gather(*(work(client) for _ in range(concurrency)))
    return found


def expected_texts(plain: Engine) -> dict[tuple[str, int], str]:
    return {
        (question, tokens): plain.generate([question], max_tokens=tokens, ignore_eos=True)[0].text
        for question in QUESTIONS
        for tokens in (1, 3, 8, 16)
    }


def test_a_storm_of_leaving_clients_leaves_nothing_behind(live: Running, plain: Engine) -> None:
    free = live.free_pages
    found = asyncio.run(storm(live, 150, 16, expected_texts(plain)))
    assert found["wrong"] == found["lost"] == 0
    assert found["left"] > 5
    assert found.total() == 150
    wait_for(lambda: idle(live))
    assert live.free_pages == free


@pytest.mark.slow
def test_ten_thousand_requests_and_memory_stays(make_engine: MakeEngine, plain: Engine) -> None:
    expected = expected_texts(plain)
    with running(make_engine(max_batch=32)) as server:
        free, process = server.free_pages, psutil.Process()
        asyncio.run(storm(server, 2000, 64, expected))
        warm = process.memory_info().rss
        found = asyncio.run(storm(server, 10_000, 64, expected))
        wait_for(lambda: idle(server))
        grown = process.memory_info().rss / warm - 1
        print(f"{found}, memory grew by {grown:.2%} from {warm >> 20} MiB")
        assert found["wrong"] == found["lost"] == 0
        assert found.total() == 10_000
        assert server.free_pages == free
        assert grown < 0.02


def test_the_log_has_a_line_per_request_and_no_prompt(
    live: Running, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "the password is swordfish"
    with caplog.at_level("INFO", logger="fledge"):
        live.post("/v1/chat/completions", chat(secret, 3, user="u-1", model=MODEL))
        wait_for(lambda: any(r.name == "fledge.server.access" for r in caplog.records))
    told = [record.__dict__["fields"] for record in caplog.records if record.name == "fledge.server.access"]
    assert told[-1]["user"] == "u-1"
    assert told[-1]["status"] == 200
    assert "swordfish" not in caplog.text + json.dumps(told)
