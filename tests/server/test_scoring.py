"""A prompt is scored, or only read, without a new token."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Running, chunks

ASK: dict[str, Any] = {"prompt": "The sky is blue", "temperature": 0}


def test_a_prompt_s_log_probabilities_come_without_a_new_token(live: Running) -> None:
    scored = {**ASK, "echo": True, "logprobs": 2}
    expected = live.post("/v1/completions", {**scored, "max_tokens": 1}).json()["choices"][0]
    answer = live.post("/v1/completions", {**scored, "max_tokens": 0, "stop": ["x"]}).json()
    (choice,), usage = answer["choices"], answer["usage"]
    assert (choice["text"], choice["finish_reason"]) == (ASK["prompt"], "length")
    assert (usage["completion_tokens"], usage["total_tokens"]) == (0, usage["prompt_tokens"])
    assert usage["prompt_tokens"] > 2
    for name, values in choice["logprobs"].items():
        assert len(values) == usage["prompt_tokens"]
        assert values == expected["logprobs"][name][:-1]
    ids = live.post("/v1/completions", {**ASK, "max_tokens": 0, "prompt_logprobs": 1}).json()["choices"][0]
    assert len(ids["prompt_logprobs"]) == usage["prompt_tokens"]


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"n": 2}, {"prompt": ["One", "Another one"]}])
def test_no_token_at_all_may_be_requested(live: Running, more: dict[str, Any]) -> None:
    body = {**ASK, **more, "max_tokens": 0, "return_token_ids": True}
    whole = live.post("/v1/completions", body).json()
    stream = chunks(live.post("/v1/completions", {**body, "stream": True}).text)
    for choices in (whole["choices"], [choice for chunk in stream for choice in chunk["choices"]]):
        assert {choice["finish_reason"] for choice in choices} == {"length"}
        assert {choice["text"] for choice in choices} == {ASK["prompt"] if "echo" in more else ""}
        assert all(choice["token_ids"] == [] for choice in choices)
    assert whole["usage"]["completion_tokens"] == 0


def test_a_prompt_that_was_only_read_is_in_the_prefix_cache(live: Running) -> None:
    prompt = "So many words that they fill more than a page of the cache. " * 6
    live.post("/v1/completions", {**ASK, "prompt": prompt, "max_tokens": 0})
    usage = live.post("/v1/completions", {**ASK, "prompt": prompt, "max_tokens": 2}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/responses", {"input": "x"}, "max_output_tokens"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}, "max_tokens"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "max_completion_tokens"),
    ],
)
def test_a_limit_that_is_refused_has_the_name_that_the_client_gave_it(
    live: Running, path: str, body: dict[str, Any], field: str
) -> None:
    refused = live.post(path, {**body, field: 0})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(f"{field}: ")
