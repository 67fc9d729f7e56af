"""`fledge learn race` against a server: probes, requests and their counts."""

from __future__ import annotations

import asyncio
from typing import Any

from fledge.bench.workloads import Prompt
from fledge.engine import Engine
from fledge.learn.race import RaceOptions, run
from fledge.target.target import Target
from tests.server.conftest import running
from tests.server.test_learn import STATE, Noted


def test_a_race_counts_its_requests_and_compares_the_answers_of_its_probes(target: Target) -> None:
    prompts = [Prompt(str(number), "chat", (f"Tell me {number} things.",)) for number in range(3)]
    options = RaceOptions(minutes=0.02, max_tokens=48, probe_every=1, pause_s=0.0)
    told: list[str] = []
    with running(Engine(target, max_batch=4, max_context=256, recorder=Noted())) as server:
        found = asyncio.run(run(server.url, "tiny", prompts, options, told.append))
    assert found.requests > 0
    assert found.failed == 0
    assert found.tokens > 0
    assert len(told) == len(found.probes) > 0
    assert all(probe.same and probe.version == STATE["version"] for probe in found.probes)
    assert found.learning == STATE
    reached: dict[str, Any] = found.as_json()["reached"]
    assert list(reached) == ["1.2x", "1.5x", "2x"]
