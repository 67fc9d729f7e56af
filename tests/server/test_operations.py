"""Routes that clouds and operators call, under vLLM's, SGLang's and SageMaker's names."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.server.conftest import Running, running, wait_for

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi there, all of you " * 8}]}
ASK: dict[str, Any] = {**HI, "max_tokens": 4, "temperature": 0}


def cached(server: Running) -> int:
    answer = server.post("/v1/chat/completions", ASK).json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
def test_a_flushed_cache_is_empty(live: Running, path: str) -> None:
    before = live.post("/v1/chat/completions", ASK).json()["choices"]
    assert cached(live) > 0
    assert live.post(path, {}).status_code == 200
    assert cached(live) == 0
    assert cached(live) > 0
    assert live.post("/v1/chat/completions", ASK).json()["choices"][0]["message"] == before[0]["message"]
    assert live.get("/flush_cache").status_code == 200


def test_the_cache_of_a_busy_server_is_kept(make_engine: Any, options: Any) -> None:
    with running(make_engine(), options()) as server:
        long = {**HI, "max_tokens": 300, "ignore_eos": True}
        asking = threading.Thread(target=server.post, args=("/v1/chat/completions", long))
        asking.start()
        wait_for(lambda: server.server.worker.unfinished == 1)
        refused = server.post("/flush_cache", {})
        asking.join()
        assert refused.status_code == 400
        assert "in progress" in refused.json()["error"]["message"]


def test_sagemaker_s_route_answers_chats_and_texts(live: Running) -> None:
    chat = live.post("/invocations", ASK).json()
    assert (
        chat["choices"][0]["message"]
        == live.post("/v1/chat/completions", ASK).json()["choices"][0]["message"]
    )
    text = live.post("/invocations", {"prompt": [40, 50], "max_tokens": 2}).json()
    assert text["object"] == "text_completion"
    assert live.post("/invocations", {**ASK, "stream": True}).text.endswith("data: [DONE]\n\n")
    assert live.post("/invocations", {"input": "x"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/chat/completions", {**HI, "max_tokens": 300, "ignore_eos": True}, '"code":"timeout"'),
        ("/v1/messages", {"messages": HI["messages"], "max_tokens": 300}, '"type":"timeout_error"'),
        ("/v1/responses", {"input": "Hi"}, '"type":"response.failed"'),
    ],
)
def test_a_stream_that_takes_too_long_ends_in_its_dialect_s_words(
    make_engine: Any, options: Any, path: str, body: dict[str, Any], last: str
) -> None:
    engine = make_engine()
    step = engine.step
    engine.step = lambda: (threading.Event().wait(0.1), step())[1]
    with running(engine, options(request_timeout=0.3)) as server:
        ended = server.post(path, {**body, "stream": True}).text
    assert ended.count(last) == 1
    assert last in "".join(ended.strip().split("\n\n")[-2:])
