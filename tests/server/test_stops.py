"""Stop strings through HTTP: the text is plain decode's, cut where the first stop begins; nothing after it leaks."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fledge.engine import Engine
from tests.server.conftest import QUESTIONS, Running, chunks


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.data())
def test_text_equals_plain_decode_cut_at_the_stop(live: Running, plain: Engine, data: st.DataObject) -> None:
    question = data.draw(st.sampled_from(QUESTIONS))
    whole = plain.generate([question], max_tokens=40, ignore_eos=True)[0]
    stops = []
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, max(len(whole.text) - 1, 0)))
        stops.append(
            whole.text[start : start + data.draw(st.integers(1, 6))]
            + data.draw(st.sampled_from(["", "", "¤"]))
        )
    at = [whole.text.find(stop) for stop in stops]
    cut = min((place for place in at if place >= 0), default=len(whole.text))
    body = {
        "messages": [{"role": "user", "content": question}], "max_tokens": 40, "temperature": 0, "ignore_eos": True,
        "stop": stops, "stream": data.draw(st.booleans()),
    }  # fmt: skip
    response = live.post("/v1/chat/completions", body)
    assert response.status_code == 200
    if body["stream"]:
        choices = [chunk["choices"][0] for chunk in chunks(response.text)]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
    else:
        choices = [response.json()["choices"][0]]
        text = choices[0]["message"]["content"]
    assert text == whole.text[:cut]
    assert choices[-1]["finish_reason"] == ("stop" if any(place >= 0 for place in at) else "length")
    if choices[-1]["finish_reason"] == "stop":
        assert choices[-1]["stop_reason"] in stops


def test_a_stop_id_ends_the_answer_and_its_text_is_not_shown(live: Running, plain: Engine) -> None:
    whole = plain.generate([QUESTIONS[2]], max_tokens=30, ignore_eos=True)[0]
    stop = whole.token_ids[9]
    end = whole.token_ids.index(stop)
    shown = plain.target.tokenizer.decode(whole.token_ids[:end], skip_special_tokens=True)
    body = {
        "messages": [{"role": "user", "content": QUESTIONS[2]}], "max_tokens": 30, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    for way in ({"stop_token_ids": [stop]}, {"stop": [stop]}):
        choice = live.post("/v1/chat/completions", {**body, **way}).json()["choices"][0]
        assert choice["message"]["content"] == shown
        assert choice["token_ids"] == whole.token_ids[: end + 1]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_nothing_ends_an_answer_before_min_tokens(live: Running, plain: Engine) -> None:
    whole = plain.generate([QUESTIONS[2]], max_tokens=30, ignore_eos=True)[0]
    wanted = {"max_tokens": 30, "stop_token_ids": whole.token_ids[2:8:2], "min_tokens": 12}
    expected = plain.generate([QUESTIONS[2]], **wanted)[0]  # type: ignore[arg-type]
    assert len(expected.token_ids) > 12
    prompt, more = whole.prompt_token_ids, {**wanted, "temperature": 0, "return_token_ids": True}
    chat = {"messages": [{"role": "user", "content": QUESTIONS[2]}], **more}
    for path, body in (("chat/completions", chat), ("completions", {"prompt": prompt, **more})):
        choice = live.post(f"/v1/{path}", body).json()["choices"][0]
        assert choice["token_ids"] == expected.token_ids


def test_special_tokens_are_in_the_text_where_that_is_wanted(live: Running, plain: Engine) -> None:
    special = plain.target.tokenizer.convert_tokens_to_ids("<|start_header_id|>")
    body = {"prompt": "Why", "max_tokens": 9, "ignore_eos": True, "seed": 3, "return_token_ids": True}
    body["logit_bias"] = {str(special): 8}
    for stream in (False, True):
        for skip in (True, False):
            more = {**body, "skip_special_tokens": skip, "stream": stream}
            answer = live.post("/v1/completions", more)
            choices = [chunk["choices"][0] for chunk in (chunks(answer.text) if stream else [answer.json()])]
            ids = [token for choice in choices for token in choice["token_ids"]]
            text = "".join(choice["text"] for choice in choices)
            assert special in ids
            assert text == plain.target.tokenizer.decode(ids, skip_special_tokens=skip)
