"""Any model's name and either form of a base URL are taken."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fledge.engine import Engine
from fledge.server import errors
from fledge.server.options import ServerOptions
from tests.server.conftest import MODEL, Running, running

HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
BODIES = {
    "/v1/chat/completions": HI,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": HI,
    "/v1/messages/count_tokens": {"messages": HI["messages"]},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5]},
}


@pytest.mark.parametrize("path", BODIES)
def test_any_name_is_taken_and_the_answer_gives_the_served_one(live: Running, path: str) -> None:
    for name, told in (("gpt-4o", MODEL), ("", MODEL), (None, MODEL), ("other-name", "other-name")):
        answer = live.post(path, {**BODIES[path], "model": name})
        assert answer.status_code == 200, answer.text
        assert answer.json().get("model", told) == told
    stream = live.post("/v1/chat/completions", {**HI, "model": "gpt-4o", "stream": True}).text
    assert f'"model":"{MODEL}"' in stream
    assert live.get("/v1/models/gpt-4o").status_code == 404  # what there is can still be asked


def test_a_strict_server_takes_its_own_names_only(
    make_engine: Callable[..., Engine], options: Callable[..., ServerOptions]
) -> None:
    with running(make_engine(), options(strict_model_name=True)) as server:
        for path, body in BODIES.items():
            refused = server.post(path, {**body, "model": "gpt-4o"})
            assert refused.status_code == 404, path
            assert "unknown model" in refused.json()["error"]["message"]
            assert server.post(path, {**body, "model": "other-name"}).status_code == 200
            assert server.post(path, body).status_code == 200


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/responses"])
def test_routes_answer_without_the_v1(live: Running, path: str) -> None:
    short, long = (
        live.post(each, {**BODIES[f"/v1{path}"], "temperature": 0}) for each in (path, f"/v1{path}")
    )
    assert (short.status_code, short.json().keys()) == (200, long.json().keys())


def test_models_and_health_are_found_at_either_place(
    make_engine: Callable[..., Engine], options: Callable[..., ServerOptions]
) -> None:
    with running(make_engine(), options(api_keys=("a-key-of-tests",))) as server:
        assert server.get("/v1/health").json() == server.get("/health").json()  # open, like it
        key = {"authorization": "Bearer a-key-of-tests"}
        models = server.get("/v1/models", headers=key).json()
        assert server.get("/models", headers=key).json() == models
        assert server.get("/models").status_code == 401
    card = models["data"][0]
    assert 0 <= time.time() - card["created"] < 600
    assert card["created_at"] == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(card["created"]))


def test_other_servers_routes_are_answered_by_the_one_with_the_same_purpose(live: Running) -> None:
    def told(path: str) -> str:
        refused = live.get(path)
        assert refused.status_code == 404
        return str(refused.json()["error"]["message"])

    paths = live.get("/openapi.json").json()["paths"]
    for path, here in errors._ROUTES.items():
        assert here.split(",")[0] in {*paths, "/openapi.json"}
        assert told(path) == f"no such route; use {here}"
    assert told("/v1/chat/completion").endswith("did you mean /v1/chat/completions?")
    assert "/openapi.json lists all" in told("/infill")
    assert "/openapi.json lists all" in told(f"/v1/{'completions' * 9}")
