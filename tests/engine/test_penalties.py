"""Penalties, bias and min_tokens of every node are what plain decode would apply after its tokens, to the last bit."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from fledge.draft.tree import DraftTree
from fledge.engine import TreeShape
from fledge.engine.params import SamplingParams
from fledge.engine.penalties import edited
from fledge.engine.request import Request
from fledge.engine.selection import SelectionRows, request_selection
from tests.engine.test_accept import random_tree

V = 13
CPU = torch.device("cpu")
OPTIONS = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.6, "presence_penalty": 0.5},
    {"presence_penalty": 1.5, "frequency_penalty": -0.7},
    {"frequency_penalty": 0.9, "logit_bias": {3: 4.0, 0: -2.5}},
    {"logit_bias": {1: 1.0, 5: -100.0, 7: 2.0}},
    {"min_tokens": 5, "stop_token_ids": [4, 9, 2]},
    {"min_tokens": 2, "stop_token_ids": [0], "repetition_penalty": 1.4},
    {"min_tokens": 5},
    {},
]


def make_request(prompt: list[int], answer: list[int], **options: object) -> Request:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    stop_ids = frozenset(params.stop_token_ids)
    request = Request(prompt, params, seed=0, stop_ids=stop_ids, speculate=True, sink=None)
    request.output_ids = list(answer)
    return request


def edit(
    logits: Tensor,
    requests: list[Request],
    tree: DraftTree | None,
    picked: Tensor | None = None,
    *,
    keep: bool = True,
) -> Tensor:
    selection = request_selection(requests, V, CPU)
    if selection is None or selection.edits is None:
        return logits
    position = positions(requests)[:, None] + (0 if tree is None else tree.depths)
    position = position.reshape(-1) if picked is None else position.reshape(-1)[picked]
    return edited(logits, position, selection.edits, tree, picked, keep=keep)


def positions(requests: list[Request]) -> Tensor:
    return torch.tensor([request.length for request in requests])


def by_hand(row: Tensor, request: Request, ancestors: list[int]) -> list[float]:
    params, answer = request.params, [*request.output_ids, *ancestors]
    counts, values = Counter(answer), row.double().tolist()
    for token, bias in params.logit_bias.items():
        values[token] += bias
    for token in {*request.prompt_ids, *answer}:
        r = params.repetition_penalty
        values[token] = values[token] / r if values[token] > 0 else values[token] * r
    for token, count in counts.items():
        values[token] -= params.presence_penalty + params.frequency_penalty * count
    for token in params.stop_token_ids if len(answer) < params.min_tokens else ():
        values[token] = -math.inf
    return values


def trees_of(rng: random.Random, shape: TreeShape, count: int) -> tuple[DraftTree, list[list[list[int]]]]:
    """Random trees, and for every node the tokens of its ancestors without the root's."""
    parts = [random_tree(rng, shape) for _ in range(count)]
    columns = [torch.tensor([part[column] for part in parts]) for column in range(4)]
    nothing = torch.zeros(count, shape.nodes)
    tree = DraftTree(columns[1], columns[0], columns[2], columns[3], nothing, nothing.long())
    ancestors = []
    for parents, tokens, _, _ in parts:
        paths: list[list[int]] = []
        for node, parent in enumerate(parents):
            paths.append([*paths[parent], tokens[node]] if node else [])
        ancestors.append(paths)
    return tree, ancestors


@pytest.mark.parametrize("seed", range(20))
def test_every_node_is_penalized_for_its_own_ancestors(seed: int) -> None:
    rng = random.Random(seed)
    shape = TreeShape(4, 6, 24)
    requests = [
        make_request(
            [rng.randrange(V) for _ in range(4)],
            [rng.randrange(V) for _ in range(rng.randrange(6))],
            **options,
        )
        for options in rng.sample(OPTIONS, rng.randrange(1, len(OPTIONS) + 1))
    ]
    tree, ancestors = trees_of(rng, shape, len(requests))
    logits = torch.randn(len(requests) * shape.nodes, V, generator=torch.Generator().manual_seed(seed)) * 3
    raw = logits.clone()
    got = edit(logits, requests, tree)
    assert torch.equal(logits, raw)
    for number, request in enumerate(requests):
        for node in range(shape.nodes):
            row = number * shape.nodes + node
            expected = by_hand(raw[row], request, ancestors[number][node])
            assert got[row].tolist() == pytest.approx(expected, abs=1e-5)
    picked = torch.tensor(sorted(rng.sample(range(len(raw)), rng.randrange(1, len(raw)))))
    assert torch.equal(edit(raw[picked], requests, tree, picked), got[picked])
    assert torch.equal(edit(logits, requests, tree, keep=False), got)


def test_a_node_has_exactly_the_logits_of_plain_decode_after_its_ancestors() -> None:
    rng = random.Random(5)
    shape = TreeShape(4, 6, 24)
    options = {
        "repetition_penalty": 1.37,
        "presence_penalty": 0.31,
        "frequency_penalty": 0.77,
        "logit_bias": {2: 0.3},
        "min_tokens": 5,
        "stop_token_ids": [4, 8],
    }
    prompt, answer = [1, 2, 2], [4, 5, 4]
    tree, ancestors = trees_of(rng, shape, 1)
    logits = torch.randn(shape.nodes, V, generator=torch.Generator().manual_seed(0))
    together = edit(logits, [make_request(prompt, answer, **options)], tree)
    for node, path in enumerate(ancestors[0]):
        alone = edit(logits[node : node + 1], [make_request(prompt, [*answer, *path], **options)], None)
        assert torch.equal(alone[0], together[node])


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    context = [3, 3, 8, 1]
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(2)) * 4
    expected = RepetitionPenaltyLogitsProcessor(1.6)(torch.tensor([context]), logits.clone())
    got = edit(logits, [make_request(context[:2], context[2:], repetition_penalty=1.6)], None)
    assert torch.equal(got, expected)


def test_counts_follow_rounds_and_moving_rows() -> None:
    """Random joins, leaves and rounds: the running rows know what a fresh look at the requests finds."""
    rng = random.Random(3)
    rows = SelectionRows(5, V, CPU)
    running: list[Request] = []
    for step in range(300):
        if len(running) < 5 and rng.random() < 0.4:
            options = rng.choice(OPTIONS)
            running.append(make_request([rng.randrange(V)], [rng.randrange(V)], **options))
            rows.append(len(running) - 1, running[-1], [], torch.tensor(running[-1].output_ids[-1]))
        elif running and rng.random() < 0.3:
            row = rng.randrange(len(running))
            last = running.pop()
            if row < len(running):
                running[row] = last
            rows.remove(row, len(running))
        if running:
            tokens = torch.randint(V, (len(running), 4), generator=torch.Generator().manual_seed(step))
            emits = torch.tensor([rng.randrange(1, 5) for _ in running]) if step % 3 else None
            rows.count(tokens, emits)
            for row, request in enumerate(running):
                request.output_ids += tokens[row, : 4 if emits is None else int(emits[row])].tolist()
        logits = torch.randn(len(running), V, generator=torch.Generator().manual_seed(step))
        selection = rows.selection(1)
        if selection is None or selection.edits is None:
            assert not any(r.params.penalizes or r.params.logit_bias or r.ends_late for r in running)
        else:
            got = edited(logits, positions(running), selection.edits, None, keep=True)
            assert torch.equal(got, edit(logits, running, None))


def test_rows_that_just_take_the_most_likely_token_need_no_logits() -> None:
    rows = SelectionRows(2, V, CPU)
    rows.append(0, make_request([1], [2]), [], torch.tensor(2))
    rows.append(1, make_request([1], [2], top_p=0.5), [], torch.tensor(2))
    assert rows.selection(4) is None
