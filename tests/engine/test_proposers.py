"""Proposers of one's own beside a head: answers stay plain decode's, and each is counted for what comes true."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from fledge.base.errors import EngineError
from fledge.engine import Completion, Engine, Lookup, Proposer, RunningText, SamplingParams, TreeShape, build
from fledge.target import Target
from tests.engine.conftest import Greedy, noisy_head

ON_BOTH_BACKENDS = True
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_tokens": 24},
    {"temperature": 0.8, "seed": 5, "max_tokens": 24},
    {"temperature": 0.7, "seed": 6, "presence_penalty": 0.8, "repetition_penalty": 1.1, "max_tokens": 24},
    {"temperature": 0.0, "stop": ["a", "er"], "max_tokens": 24},
    {"temperature": 0.0, "structured_outputs": {"json": FORM}, "max_tokens": 40},
]


class Corpus(Proposer):
    """What followed the last `length` tokens in texts that it has been given."""

    def __init__(self, texts: Sequence[Sequence[int]] = (), length: int = 2, chance: float = 0.8) -> None:
        self.length, self.chance = length, chance
        self.next: dict[tuple[int, ...], int] = {}
        self.started: Target | None = None
        self.seen: list[RunningText] = []
        for text in texts:
            for end in range(length, len(text)):
                self.next[tuple(text[end - length : end])] = text[end]

    def start(self, target: Target) -> None:
        self.started = target

    def propose(self, text: RunningText, tokens: int) -> list[tuple[int, float]]:
        self.seen.append(text)
        known, chain = list(text.token_ids), []
        while len(chain) < tokens and (token := self.next.get(tuple(known[-self.length :]))) is not None:
            known.append(token)
            chain.append((token, self.chance))
        return chain


class Broken(Proposer):
    name = "broken"

    def propose(self, text: RunningText, tokens: int) -> list[tuple[int, float]]:
        if len(text.token_ids) % 2:
            raise OSError("disk gone")
        return [(10**9, 0.9)]


def texts_of(answers: Sequence[Completion]) -> list[list[int]]:
    return [[*answer.prompt_token_ids, *answer.token_ids] for answer in answers]


def speculating(target: Target, *proposers: Proposer, **options: Any) -> Engine:
    options = {"max_batch": 4, "max_context": 256, **options}
    return Engine(target, noisy_head(target), proposals=list(proposers), **options)


@pytest.mark.parametrize(
    ("way", "tree"),
    [
        pytest.param(way, tree, marks=pytest.mark.slow if (number + planned) % 2 else ())
        for number, way in enumerate(WAYS)
        for planned, tree in enumerate([TreeShape(3, 2, 8, 5), None])
    ],
    ids=str,
)
def test_answers_are_those_of_plain_decode(
    target: Target, prompts: list[list[int]], tree: TreeShape | None, way: dict[str, Any]
) -> None:
    plain = Engine(target, max_batch=4, max_context=256)
    params = SamplingParams(**way)
    expected = plain.generate(prompts[:8], params)
    corpus = Corpus(texts_of(expected[::2]))
    engine = speculating(target, corpus, Broken(), tree=tree)
    made = engine.generate(prompts[:8], params)
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
    assert [one.text for one in made] == [one.text for one in expected]


def test_what_comes_true_is_accepted_and_counted(
    target: Target, prompts: list[list[int]], greedy: Greedy
) -> None:
    expected = greedy(24)[:8]
    corpus = Corpus(texts_of(expected), length=3)
    engine = speculating(target, corpus, Broken(), tree=TreeShape(2, 2, 10, 8))
    made = engine.generate(prompts[:8], max_tokens=24, ignore_eos=True)
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
    stats = engine.stats().proposers["Corpus"]
    assert stats.asked > 0
    assert stats.accepted > 0.5 * stats.proposed > 0
    assert engine.stats().tau > 2.5
    assert engine.stats().proposers["broken"].failed == engine.stats().proposers["broken"].asked


def test_accepted_tokens_are_counted_for_who_proposed_them(
    target: Target, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head and prompt lookup, a grammar, and two proposers that know half of the answers each."""
    forced = {"structured_outputs": {"regex": "[a-f][g-m]0123456789"}, "max_tokens": 40}
    repeats = {"logit_bias": {7: 100.0}, "ignore_eos": True, "max_tokens": 40}
    hot = {"temperature": 3.0, "seed": 1, "max_tokens": 60}  # target and head race with the same coins
    ways = [SamplingParams(**way) for way in (*WAYS, forced, repeats, hot)]
    asked = prompts[: len(ways)]
    expected = Engine(target, max_batch=4, max_context=256).generate(asked, ways)
    counted = []
    for kernels in (True, False):  # a round in one C++ call, where the target allows it, and one in torch
        if not kernels:
            monkeypatch.setattr(build, "_kernels", lambda *_: False)
        texts = texts_of(expected[: len(WAYS) + 1])
        texts[-1] = texts[-1][
            : len(asked[len(WAYS)]) + 4
        ]  # behind the one token that it knows, the form forces more
        corpora = [Corpus(texts[half::2], length=3) for half in (0, 1)]
        engine = speculating(target, corpora[0], Broken(), corpora[1], tree=TreeShape(3, 4, 14, 5))
        answers, stats = engine.generate(asked, ways), engine.stats()
        assert [one.token_ids for one in answers] == [one.token_ids for one in expected]
        for one in (answer.stats for answer in answers):
            assert [bool(source) for source in one.token_sources] == [
                depth > 0 for depth in one.token_origins
            ]
            assert sum(one.accepted_by_source.values()) == sum(one.accepted_by_depth)
        assert sum(stats.accepted_by_source.values()) == sum(stats.accepted_by_depth)
        assert set(stats.accepted_by_source) == {"head", "lookup", "grammar", "Corpus", "Corpus 2"}
        for name, proposer in stats.proposers.items():  # what the head proposes, too, is the head's
            assert stats.accepted_by_source.get(name, 0) <= proposer.accepted
        counted.append((stats.accepted_by_source, [one.stats.token_sources for one in answers]))
    assert counted[0] == counted[1]


def test_a_proposer_sees_the_target_and_the_requests(target: Target, prompts: list[list[int]]) -> None:
    corpus = Corpus()
    engine = speculating(target, corpus, tree=TreeShape(2, 2, 6, 3))
    (answer,) = engine.generate([prompts[5]], temperature=0.9, seed=7, max_tokens=12, ignore_eos=True)
    assert corpus.started is target
    whole = [*answer.prompt_token_ids, *answer.token_ids]
    for text in corpus.seen:
        assert text.token_ids == whole[: len(text.token_ids)]
        assert text.prompt_tokens == len(answer.prompt_token_ids) < len(text.token_ids)
        assert (text.params.temperature, text.seed) == (0.9, 7)


def test_claims_are_corrected_by_what_comes_true(
    target: Target, prompts: list[list[int]], greedy: Greedy
) -> None:
    class Wrong(Corpus):
        def propose(self, text: RunningText, tokens: int) -> list[tuple[int, float]]:
            return [(7, 0.9)]

    right = Corpus(texts_of(greedy(40)[:8]), chance=0.5)
    engine = speculating(target, Wrong(), right, tree=TreeShape(2, 2, 6, 3))
    engine.generate(prompts[:8], max_tokens=40, ignore_eos=True)
    stats = engine.stats().proposers
    assert stats["Wrong"].accepted < 0.1 * stats["Wrong"].proposed
    assert stats["Corpus"].proposed > stats["Wrong"].proposed  # which claims more, and was believed at first


def test_a_failure_is_logged_once(
    target: Target, prompts: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "fledge"):
        speculating(target, Broken(), tree=TreeShape(2, 2, 6, 3)).generate(prompts[:3], max_tokens=8)
    assert sum("broken failed" in record.message for record in caplog.records) == 1


def test_what_can_not_be_is_an_error(target: Target) -> None:
    for options in ({"lookup": 0}, {"tree": "0-1-1"}):
        with pytest.raises(EngineError, match="proposals join a head's trees"):
            speculating(target, Corpus(), **options)
    with pytest.raises(EngineError, match="give a head"):
        Engine(target, proposals=[Corpus()])
    with pytest.raises(EngineError, match=r"derive each from fledge\.engine\.Proposer"):
        Engine(target, noisy_head(target), proposals=[Lookup()])


def test_one_is_named_with_its_arguments(target: Target) -> None:
    engine = Engine(
        target, noisy_head(target), drafter=f"{__name__}:Corpus(length=4, chance=0.5)", max_context=64
    )
    assert "Corpus" in engine.stats().proposers
    with pytest.raises(EngineError, match="calling it with size=3 failed"):
        Engine(target, noisy_head(target), drafter=f"{__name__}:Corpus(size=3)")
    with pytest.raises(EngineError, match="'4' isn't key=value"):
        Engine(target, noisy_head(target), drafter=f"{__name__}:Corpus(4)")
