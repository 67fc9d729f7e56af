"""A server that learns: `/v1/learn`, its metrics, and requests that say no."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import pytest

from fledge.base.errors import ServerError
from fledge.engine import Engine
from fledge.engine.record import Tape
from fledge.server.gate import check_clients
from fledge.server.learning import LearningMetrics
from fledge.server.options import ServerOptions
from fledge.target.target import Target
from tests.server.conftest import HTTP, MODEL, running

STATE: dict[str, Any] = {
    "state": "training",
    "why": "requests run, and training gets 10 % of the time meanwhile (--learn-share)",
    "progress": {"steps": 5, "until_measured": 15, "loss": 4.0},
    "share": 0.1,
    "granted_seconds": 12.0,
    "cpu_seconds": 9.0,
    "version": 3,
    "tokens": 70,
    "conversations": 2,
    "left_out": 0,
    "updates": 5,
    "swaps": 1,
    "rollbacks": 0,
    "tau": {"live": 1.5, "heldout": 1.4, "candidate": None},
    "training": {},
    "seconds": 90.0,
    "curve": [
        {"seconds": 30.0, "version": None, "before": 1.0, "tau": 1.4, "live": None},
        {"seconds": 60.0, "version": 3, "before": 1.4, "tau": 1.6, "live": 1.5},
    ],
}


class Noted:
    """What a server asks of whatever learns."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.texts: list[list[int]] = []
        self.started = self.closed = False

    def start(self, engine: Engine) -> None:
        self.started = True

    def figures(self) -> dict[str, Any]:
        return STATE

    def state(self) -> dict[str, Any]:
        return STATE

    def close(self) -> None:
        self.closed = True

    def before_step(self) -> None: ...

    def finished(self, tape: Tape, token_ids: Sequence[int]) -> None:
        self.groups.append(tape.group)
        self.texts.append(list(token_ids[: tape.prompt_tokens]))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_answers_are_recorded_by_client_unless_the_request_says_no(target: Target, path: str) -> None:
    noted = Noted()
    engine = Engine(target, max_batch=2, max_context=128, recorder=noted)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
        "/v1/completions": {"prompt": [40, 50], "max_tokens": 4},
    }
    with running(engine) as server:
        assert noted.started
        assert server.post(path, {**bodies[path], "learn": False}).status_code == 200
        assert noted.groups == []
        assert server.post(path, bodies[path]).status_code == 200
        assert noted.groups == ["127.0.0.1"]
    assert noted.closed


def test_its_state_needs_the_key_and_its_metrics_are_on_the_page(target: Target) -> None:
    key = "key-for-alice"
    options = ServerOptions(port=0, model_names=(MODEL,), api_keys=(key,))
    with running(Engine(target, max_batch=2, max_context=128, recorder=Noted()), options) as server:
        assert server.get("/v1/learn").status_code == 401
        assert server.get("/v1/learn", headers={"authorization": f"Bearer {key}"}).json() == STATE
        page = HTTP.get(f"{server.url}/metrics").text
    assert "fledge:learn_tokens_total 70.0" in page
    assert "fledge:learn_version 3.0" in page
    assert "fledge:learn_tau_live 1.5" in page
    assert "fledge:learn_tau_candidate" not in page  # nothing is known of it yet


def test_the_dashboard_asks_only_for_metrics_of_learning_that_exist() -> None:
    noted = Noted()
    known = {**STATE, "tau": {"live": 1.5, "heldout": 1.4, "candidate": 1.6}}
    noted.figures = lambda: known  # type: ignore[method-assign]
    page = {sample.name for metric in LearningMetrics(noted).collect() for sample in metric.samples}
    wanted = set(
        re.findall(r"fledge:learn_\w+", files("fledge.server").joinpath("grafana.json").read_text("utf-8"))
    )
    assert len(wanted) > 5
    assert wanted <= page


def test_a_server_that_does_not_learn_has_no_such_route(target: Target) -> None:
    with running(Engine(target, max_batch=2, max_context=128)) as server:
        assert server.get("/v1/learn").status_code == 404


def test_clients_to_except_are_named_as_the_log_names_them(target: Target) -> None:
    key = "key-for-alice"
    options, noted = ServerOptions(port=0, api_keys=(key, "key-for-bob")), Noted()
    with running(Engine(target, max_batch=2, max_context=128, recorder=noted), options) as server:
        body = {"prompt": [40, 50], "max_tokens": 4}
        assert server.post("/v1/completions", body, headers={"x-api-key": key}).status_code == 200
    check_clients(noted.groups, options.api_keys)
    check_clients(["10.0.0.7", "::1"], ())
    for wrong, keys in (
        ("key-0123456789ab", options.api_keys),
        ("127.0.0.1", options.api_keys),
        ("alice", ()),
    ):
        with pytest.raises(ServerError, match=f"no client is called '{wrong}'"):
            check_clients([wrong], keys)
