"""Speculation changes when tokens come, never which: greedy and sampled, any tree, any batch."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from fledge.engine import Engine, SamplingParams, TreeShape
from fledge.engine.planner import FixedPlanner
from fledge.engine.request import Completion
from fledge.target.batch import one_sequence
from fledge.target.target import Target
from tests.engine.conftest import SHAPES, Greedy, Uneven, scripted_head

ON_BOTH_BACKENDS = IN_EVERY_FORMAT = True

SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 20, "min_p": 0.05},
]


def token_ids(answers: list[Completion]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def test_plain_decode_equals_running_the_whole_context_for_every_token(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    decoder = target.decoder
    for answer in plain.generate(prompts[:6], max_tokens=12, ignore_eos=True):
        context = list(answer.prompt_token_ids)
        for token in answer.token_ids:
            batch = one_sequence(context, decoder.page_size, decoder.device)
            batch = batch._replace(logit_rows=torch.tensor([len(context) - 1], dtype=torch.int32))
            kv = decoder.allocate_kv(batch.page_table.numel())
            argmax = decoder.forward(batch, kv, logits="argmax").argmax
            assert argmax is not None
            assert argmax.tolist() == [token]
            context.append(token)


@pytest.mark.parametrize(
    ("shape", "rate"),
    [
        pytest.param(shape, rate, marks=() if rate == 0.6 or shape == SHAPES[2] else pytest.mark.slow)
        for shape in SHAPES
        for rate in (0.0, 0.6, 1.0)
    ],
    ids=str,
)
def test_greedy_tree_output_equals_plain_decode(
    target: Target, greedy: Greedy, prompts: list[list[int]], shape: TreeShape, rate: float
) -> None:
    engine = Engine(target, scripted_head(target, greedy(30), rate), max_batch=7, tree=shape)
    answers = engine.generate(prompts, max_tokens=30, ignore_eos=True)
    assert token_ids(answers) == token_ids(greedy(30))
    for answer in answers:
        assert len(answer.stats.token_origins) == 30
        assert (answer.stats.tau > 1) == (rate > 0)


@pytest.mark.parametrize(
    ("setting", "shape"),
    [
        pytest.param(setting, shape, marks=() if (number + place) % 2 else pytest.mark.slow)
        for number, setting in enumerate(SETTINGS)
        for place, shape in enumerate([TreeShape(3, 1, 4), TreeShape(5, 4, 16)])
    ],
    ids=str,
)
def test_sampled_output_equals_plain_sampled_output_for_the_same_seed(
    target: Target, plain: Engine, prompts: list[list[int]], shape: TreeShape, setting: dict[str, float]
) -> None:
    sampling = {"max_tokens": 24, "seed": 77, "ignore_eos": True, **setting}
    expected = plain.generate(prompts[:12], **sampling)  # type: ignore[arg-type]
    assert token_ids(expected) != token_ids(plain.generate(prompts[:12], max_tokens=24, ignore_eos=True))
    engine = Engine(target, scripted_head(target, expected, 0.7), max_batch=5, tree=shape)
    answers = engine.generate(prompts[:12], **sampling)  # type: ignore[arg-type]
    assert token_ids(answers) == token_ids(expected)
    assert sum(answer.stats.tau for answer in answers) / len(answers) > 1.3


def test_an_answer_does_not_depend_on_its_batch(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    """Greedy and sampled requests with different parameters share batches of changing composition."""
    rng = random.Random(1)
    settings = [{"temperature": 0.0}, *SETTINGS]
    wanted = [
        SamplingParams(max_tokens=rng.randrange(1, 30), seed=n, ignore_eos=True, **settings[n % 4])  # type: ignore[arg-type]
        for n in range(len(prompts))
    ]
    alone = [
        plain.generate([prompt], **_keywords(params))[0]  # type: ignore[arg-type]
        for prompt, params in zip(prompts, wanted, strict=True)
    ]
    head = scripted_head(target, alone, 0.7)
    head.strict = False
    engine = Engine(target, head, max_batch=6, tree=TreeShape(4, 3, 12))
    order = list(range(len(prompts)))
    rng.shuffle(order)
    done: dict[int, list[int]] = {}
    numbers: dict[int, int] = {}
    while order or engine.busy:
        for _ in range(min(rng.randrange(3), len(order))):
            number = order.pop()
            request = engine.submit(prompts[number], wanted[number], speculate=number % 5 != 0)
            numbers[request] = number
        for result in engine.step():
            done.setdefault(numbers[result.request_id], []).extend(result.token_ids)
    assert [done[number] for number in range(len(prompts))] == token_ids(alone)


def test_requests_without_speculation_share_the_batch(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts[:4], max_tokens=20, ignore_eos=True)
    head = scripted_head(target, expected, 1.0)
    head.strict = False
    engine = Engine(target, head, tree=TreeShape(3, 2, 6))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    finished: dict[int, Completion] = {}
    requests = [engine.submit(prompts[n], params, speculate=n % 2 == 0) for n in range(4)]
    while engine.busy:
        finished.update({r.request_id: r.completion for r in engine.step() if r.completion})
    answers = [finished[request] for request in requests]
    assert token_ids(answers) == token_ids(expected)
    assert [answer.stats.tau > 2 for answer in answers] == [True, False, True, False]
    assert answers[1].stats.drafted_rounds == 0


@pytest.mark.parametrize(
    "shape", [TreeShape(3, 1, 4), TreeShape(4, 3, 12), TreeShape(2, 2, 10, lookup=7)], ids=str
)
def test_requests_may_have_trees_of_different_sizes(
    target: Target,
    greedy: Greedy,
    prompts: list[list[int]],
    shape: TreeShape,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if backend == "torch":
        pytest.skip("trees have a fixed shape in torch")
    planner, sizes = Uneven(shape), Counter[int]()
    monkeypatch.setattr(FixedPlanner, "choose", planner.choose)
    monkeypatch.setattr(FixedPlanner, "learn", lambda self, done: sizes.update(done.drafted.sizes))
    engine = Engine(target, scripted_head(target, greedy(30), 0.8), max_batch=7, tree=shape)
    answers = engine.generate(prompts, max_tokens=30, ignore_eos=True)
    assert token_ids(answers) == token_ids(greedy(30))
    assert len(sizes) >= 3
    assert 0 in sizes
    assert engine.stats().draft_tokens == sum(size * times for size, times in sizes.items())
    assert engine.stats().tau > 1.2


def test_a_perfect_head_yields_depth_plus_one_tokens_a_round(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts[3:4], max_tokens=25, ignore_eos=True)
    for shape in (TreeShape(3, 1, 4), TreeShape(5, 4, 16)):
        head = scripted_head(target, expected, 1.0, best_first=True)
        stats = (
            Engine(target, head, tree=shape).generate(prompts[3:4], max_tokens=25, ignore_eos=True)[0].stats
        )
        assert stats.rounds == 24 // (shape.depth + 1)
        assert stats.tau == shape.depth + 1
        assert stats.accepted_by_depth == [stats.rounds] * shape.depth
        assert stats.token_origins[1:] == [*range(1, shape.depth + 1), 0] * stats.rounds


def _keywords(params: SamplingParams) -> dict[str, object]:
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos")
    return {name: getattr(params, name) for name in names}
