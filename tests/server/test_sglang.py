"""SGLang's own interface: what its clients and its benchmark send, and what they read from the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fledge.engine import Engine
from tests.server.conftest import QUESTIONS, TARGET, Running

IDS = [[40, 50, 60], [70, 80, 90, 100]]
GREEDY = {"temperature": 0.0, "max_new_tokens": 9, "ignore_eos": True}


def events(text: str) -> list[Any]:
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_benchmarks_request_streams_the_whole_text_so_far(live: Running, plain: Engine) -> None:
    prompt = live.server.engine.prompt_ids(QUESTIONS[0])
    expected = plain.generate([prompt], max_tokens=24, ignore_eos=True)[0]
    body = {
        "input_ids": prompt, "sampling_params": {**GREEDY, "max_new_tokens": 24}, "stream": True, "lora_path": None,
        "return_logprob": False, "return_routed_experts": False, "logprob_start_len": -1,
    }  # fmt: skip
    chunks = events(live.post("/generate", body).text)
    assert all(expected.text.startswith(chunk["text"]) for chunk in chunks)
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    last = chunks[-1]
    assert (last["text"], last["output_ids"]) == (expected.text, expected.token_ids)
    assert last["meta_info"]["prompt_tokens"] == len(prompt)
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 24}
    assert last["meta_info"]["spec_accept_length"] > 1.2
    assert chunks[0]["meta_info"]["finish_reason"] is None


def test_one_prompt_is_answered_with_an_object_and_several_with_a_list(live: Running, plain: Engine) -> None:
    expected = [answer.text for answer in plain.generate(IDS, max_tokens=9, ignore_eos=True)]
    single = live.post("/generate", {"input_ids": IDS[0], "sampling_params": GREEDY}).json()
    assert single["text"] == expected[0]
    several = live.post("/generate", {"input_ids": IDS, "sampling_params": {**GREEDY, "n": 2}}).json()
    assert [answer["text"] for answer in several] == [expected[0]] * 2 + [expected[1]] * 2
    assert len({answer["meta_info"]["id"] for answer in several}) == 4
    assert live.post("/generate", {"text": "Why is"}).json()["meta_info"]["completion_tokens"] <= 128


def test_log_probabilities_and_stops_have_their_form(live: Running) -> None:
    body = {
        "input_ids": IDS[0], "sampling_params": GREEDY, "return_logprob": True, "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
    }  # fmt: skip
    answer = live.post("/generate", body).json()
    about = answer["meta_info"]
    assert [token for _, token, _ in about["output_token_logprobs"]] == answer["output_ids"]
    assert [top[0] for top in about["output_top_logprobs"]] == about["output_token_logprobs"]  # greedy
    assert all(logprob <= 0 and isinstance(text, str) for logprob, _, text in about["output_token_logprobs"])
    third = answer["output_ids"][3]
    stopped = live.post(
        "/generate", {"input_ids": IDS[0], "sampling_params": {**GREEDY, "stop_token_ids": [third]}}
    ).json()
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": third}


@pytest.mark.parametrize(
    "change",
    [
        {"text": "both"},
        {"input_ids": None},
        {"sampling_params": {"max_new_tokens": 0}},
        {"sampling_params": {"json_schema": "{"}},
        {"sampling_params": {"json_schema": "{}", "regex": "a"}},
        {"sampling_params": {"ebnf": "root ::= 'a'"}},
        {"sampling_params": {"temperature": -1.0}},
        {"sampling_params": {"min_new_tokens": 3, "max_new_tokens": 2}},
        {"top_logprobs_num": 3},
        {"image_data": ["x"]},
        {"logprob_start_len": 0},
    ],
)
def test_what_is_not_supported_is_refused(live: Running, change: dict[str, Any]) -> None:
    response = live.post("/generate", {"input_ids": IDS[0], **change})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_an_answer_has_the_form_that_sampling_params_name(live: Running) -> None:
    for form, expected in (
        ({"regex": "ab|cd"}, ("ab", "cd")),
        ({"json_schema": '{"enum": ["x", 7]}'}, ('"x"', "7")),
    ):
        sampling = {"temperature": 0.0, "max_new_tokens": 30, **form}
        answer = live.post("/generate", {"input_ids": IDS[0], "sampling_params": sampling}).json()
        assert answer["text"].strip() in expected


def test_the_model_is_where_its_clients_look(live: Running) -> None:
    for path in ("/model_info", "/get_model_info"):
        assert live.get(path).json()["is_generation"] is True
        assert live.get(path).json()["tokenizer_path"] == TARGET
    assert live.get("/version").json()["version"]
