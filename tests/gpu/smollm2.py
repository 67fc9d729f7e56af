"""SmolLM2 with the head that ships, where its weights are on the machine: $TARGET, the cache or the package."""

from __future__ import annotations

import os
import time
from typing import Any

from fledge.base.errors import FledgeError
from fledge.engine import Engine
from fledge.released import released_head
from fledge.target import Target
from tests.gpu.record import Check

_QUESTIONS = (
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "What is 12 times 7? Explain each step.",
    "Write a short story about a ship.",
)


def smollm2(check: Check) -> None:
    """Answers with the head are plain decode's, up to near-ties of bf16; tokens per second of both."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    spec = os.environ.get("TARGET")
    try:
        target = Target.load(*([spec] if spec else []), device=str(check.device))
    except FledgeError as error:
        print(f"       {check.part}: skipped, {error}", flush=True)
        check.skipped.append(check.part)
        return

    def compare() -> dict[str, Any]:
        length = 8 if check.small else 200
        found, seconds, tau = [], [], 1.0
        for head in (None, released_head(target)):
            engine = Engine(target, head, max_batch=4, max_context=1024)
            engine.generate(_QUESTIONS, max_tokens=length // 2)
            begun = time.perf_counter()
            found.append([one.token_ids for one in engine.generate(_QUESTIONS, max_tokens=length)])
            seconds.append(time.perf_counter() - begun)
            tau = engine.stats().tau
        plain, drafted = found
        firsts = [
            next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            for a, b in zip(plain, drafted, strict=True)
        ]
        return {
            "tau": round(tau, 3),
            "first_difference": firsts,
            "tokens_s": [
                round(sum(map(len, some)) / spent) for some, spent in zip(found, seconds, strict=True)
            ],
        }

    check.case("plain and with the head", compare, least=40.0)
