"""schemathesis: requests generated from the published OpenAPI, valid and invalid, never make the server fail."""

from __future__ import annotations

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation.modes import GenerationMode

from tests.server.conftest import Running

_MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def _shorten(body: object) -> None:
    """Long answers, and many of them, would only take time."""
    if not isinstance(body, dict):
        return
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of"):
        if isinstance(body.get(name), int):
            body[name] = 3 if body[name] == -1 else min(body[name], 3)
    if "input" in body:
        body.setdefault("max_output_tokens", 3)
    elif not {"max_tokens", "max_completion_tokens"} & set(body):
        body["max_tokens"] = 3


def attack(live: Running, cases: int) -> int:
    """Send at least `cases` generated requests, shared out over all operations; returns how many got an answer."""
    schema = schemathesis.openapi.from_dict(live.get("/openapi.json").json())
    schema.config.update(base_url=live.url)
    operations = [result.ok() for result in schema.get_all_operations()]
    sent = 0
    for operation in operations:
        has_body = bool(operation.body)
        for mode in _MODES if has_body else _MODES[:1]:

            @settings(
                max_examples=cases // 10 if has_body else 5,
                phases=[Phase.generate],
                derandomize="SCHEMATHESIS_RANDOM" not in os.environ,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(data=st.data())
            def one(data: st.DataObject) -> None:
                nonlocal sent
                case = data.draw(operation.as_strategy(generation_mode=mode))  # noqa: B023
                _shorten(case.body)
                response = case.call(base_url=live.url, timeout=120)
                sent += 1
                assert response.status_code < 500, (
                    response.status_code,
                    response.text,
                    case.as_curl_command()[:2000],
                )
                if response.status_code >= 400 and response.content:
                    assert response.json()["error"]["message"]

            one()
    return sent


def test_generated_requests_never_fail_the_server(live: Running) -> None:
    assert attack(live, 60) > 70
    assert live.get("/health").status_code == 200
    assert live.server.worker.unfinished == 0


@pytest.mark.slow
def test_five_thousand_generated_requests(live: Running) -> None:
    assert attack(live, 7000) >= 5000
    assert live.get("/health").status_code == 200
    assert live.server.worker.unfinished == 0
