"""What just fits is answered; one more of it is refused, with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fledge.engine import Engine
from fledge.server.options import ServerOptions
from tests.server.conftest import Running, running

JSON = {"content-type": "application/json"}
MAX_BODY = 1000


@pytest.fixture(scope="module")
def narrow(make_engine: Callable[..., Engine]) -> Iterator[Running]:
    """A server of few and small answers."""
    limits = ServerOptions(port=0, max_body_mb=MAX_BODY / 2**20, max_answers=4)
    with running(make_engine(max_context=64), limits) as server:
        yield server


def completion(prompt: Any, **more: object) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True, **more}


def code(server: Running, body: dict[str, object]) -> str | None:
    """Why a request is refused; None: it is answered."""
    response = server.post("/v1/completions", body)
    assert response.status_code in (200, 400)
    return None if response.status_code == 200 else response.json()["error"]["code"] or "wrong"


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_may_be_as_large_as_the_limit(narrow: Running, announced: bool) -> None:
    plain = json.dumps(completion([40, 50])).encode()
    for size, status in ((MAX_BODY, 200), (MAX_BODY + 1, 413)):
        body = plain + b" " * (size - len(plain))
        content = body if announced else iter([body[:500], body[500:]])
        response = narrow.post("/v1/completions", content=content, headers=JSON)
        assert ("content-length" in response.request.headers) == announced
        assert response.status_code == status


def test_prompt_and_answer_may_fill_the_context(narrow: Running) -> None:
    assert code(narrow, completion([40] * 50, max_tokens=14)) is None
    assert code(narrow, completion([40] * 50, max_tokens=15)) == "context_length_exceeded"
    assert code(narrow, completion([40] * 63, max_tokens=1)) is None
    assert code(narrow, completion([40] * 64, max_tokens=1)) == "context_length_exceeded"
    chat = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "ignore_eos": True}
    whole = narrow.post("/v1/chat/completions", chat).json()  # it takes all the room there is
    assert (whole["usage"]["total_tokens"], whole["choices"][0]["finish_reason"]) == (64, "length")


def test_a_request_may_ask_for_as_many_answers_as_the_limit(narrow: Running) -> None:
    for prompt, n in (([40, 50], 4), ([[40], [50]], 2)):
        assert len(narrow.post("/v1/completions", completion(prompt, n=n)).json()["choices"]) == 4
        assert code(narrow, completion(prompt, n=n + 1)) == "wrong"


def test_faults_between_which_the_engine_works_leave_it_healthy(
    make_engine: Callable[..., Engine], options: Callable[..., ServerOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(make_engine(), options()) as server:
        step = server.server.engine.step

        def broken() -> Any:
            raise RuntimeError("a bad moment")

        for _ in range(3):
            monkeypatch.setattr(server.server.engine, "step", broken)
            for _ in range(2):
                assert server.post("/v1/completions", completion([40])).status_code == 500
            monkeypatch.setattr(server.server.engine, "step", step)
            assert server.post("/v1/completions", completion([40])).status_code == 200
            assert server.get("/health").status_code == 200
        error = server.post("/v1/completions", completion([40] * 600)).json()["error"]
        assert error["type"] == "invalid_request_error"
        monkeypatch.setattr(server.server.engine, "step", broken)
        error = server.post("/v1/completions", completion([40])).json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_failed")
