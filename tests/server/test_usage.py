"""What an answer says it used: tokens of each prompt once, speculation over all rounds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fledge.engine import Completion, PhaseSeconds, SamplingParams, StepResult
from fledge.engine.request import CompletionStats
from fledge.server.job import Job
from fledge.server.render import usage
from tests.tiny import make_tokenizer

TOKENIZER = make_tokenizer()
STATS = CompletionStats(
    tokens=2, rounds=1, tau=2.0, ttft_ms=30.0, tpot_ms=4.0, e2e_ms=50.0, accepted_by_depth=[1], drafted_rounds=1,
    token_origins=[0, 1], phases=PhaseSeconds(), cached_tokens=0,
)  # fmt: skip


def answered(prompt: list[int], tokens: int, stats: CompletionStats | None) -> Job:
    """A job that got so many tokens; stats None: it isn't done yet."""
    job = Job(prompt, SamplingParams(), tokenizer=TOKENIZER)
    done = None if stats is None else Completion("", [40] * tokens, prompt, "length", stats)
    job.receive(StepResult(0, [40] * tokens, [0] * tokens, done))
    return job


def of(*jobs: tuple[list[int], int, CompletionStats | None]) -> dict[str, object]:
    async def made() -> dict[str, object]:
        return usage([answered(*job) for job in jobs])

    return asyncio.run(made())


def test_choices_share_the_tokens_of_their_prompt() -> None:
    shared, other = [40, 41, 42], [40, 41, 42, 43, 44]
    first = replace(STATS, cached_tokens=2)
    later = replace(STATS, cached_tokens=3)  # it found what the first one had written
    found = of((shared, 2, first), (shared, 4, later), (other, 6, replace(STATS, cached_tokens=1)))
    assert (found["prompt_tokens"], found["completion_tokens"], found["total_tokens"]) == (8, 12, 20)
    assert found["prompt_tokens_details"] == {"cached_tokens": 2 + 1}


def test_speculation_is_summed_up_over_the_rounds_of_all_answers() -> None:
    one = replace(
        STATS,
        token_sources=["", "head", "", "head", "lookup", ""],
        rounds=3,
        tau=2.0,
        drafted_rounds=2,
        accepted_by_depth=[2, 1],
        ttft_ms=30.0,
        tpot_ms=4.0,
    )
    other = replace(
        STATS,
        token_sources=["", "lookup", "head", "Glossary"],
        rounds=1,
        tau=4.0,
        drafted_rounds=1,
        accepted_by_depth=[1, 1, 1],
        ttft_ms=20.0,
        tpot_ms=6.0,
    )
    assert of(([40], 6, one), ([41], 4, other))["speculation"] == {
        "tau": 2.5,
        "rounds": 4,
        "drafted_rounds": 3,
        "accepted_by_depth": [3, 2, 1],
        "accepted_by_source": {"head": 3, "lookup": 2, "Glossary": 1},
        "ttft_ms": 20.0,
        "tpot_ms": 5.0,
    }
    plain = of(([40], 1, replace(STATS, rounds=0, tau=1.0, drafted_rounds=0, accepted_by_depth=[])))
    assert isinstance(plain["speculation"], dict)
    assert plain["speculation"]["tau"] == 1.0


def test_while_an_answer_goes_on_only_tokens_are_counted() -> None:
    found = of(([40, 41], 2, STATS), ([42], 3, None))
    assert found == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
