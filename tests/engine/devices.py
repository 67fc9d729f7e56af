"""Simulated devices and heads, and an engine's rounds on them: what the planner makes of costs that it can't know.

A device is seconds by rows, with noise, slow spells and first measurements that may be wrong. A head is a mixture of
moments: how often its best candidate is right, and how sure it says it is. Each cell of the bench is one planner on one
device with one head and one load; its rounds cost and bring what device and head say, and the planner learns from
noisy samples of that, as in an engine.

    python -m tests.engine.devices --output results/simulated.json       all cells, as a table and for the docs' chart
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fledge.draft.tree import DraftTree
from fledge.engine import PLAIN, TreeShape
from fledge.engine.measure import sizes_up_to
from fledge.engine.planner import AdaptivePlanner, CostCurve, CostModel, FinishedRound, Kind, RoundPlan
from fledge.engine.planner.cost import head_forwards
from fledge.engine.planner.speed import trees
from fledge.engine.rounds.graphs import trees_for
from fledge.engine.shapes import MAX_DEPTH, MAX_NODES, TOPKS
from tests.engine import decisions

_LOOKUP = 15
WARM_UP, ROUNDS = 200, 600  # the promise holds after the first, and is measured up to the second


@dataclass(frozen=True)
class Device:
    """What forwards cost: `memory` seconds to read the weights, `row` seconds to multiply a row; target, then head."""

    name: str
    memory: float
    row: float
    head_memory: float
    head_row: float
    launch: float  # seconds of a target forward that neither memory nor multiplications explain
    host: tuple[float, float]  # seconds outside forwards: of a plain round, of one with drafts
    noise: float  # standard deviation of a round's log seconds
    spells: tuple[float, float] = (0.0, 0.0)  # most log slow-down of a slow spell, mean seconds of a spell
    mistaken: float = 1.0  # first measurements of more than one row are so many times too high
    gpu: bool = False

    def target(self, rows: float) -> float:
        return self.launch + (self.memory**3 + (rows * self.row) ** 3) ** (1 / 3)

    def head(self, rows: float) -> float:
        return self.launch / 8 + (self.head_memory**3 + (rows * self.head_row) ** 3) ** (1 / 3)

    def plain(self, requests: int) -> float:
        return self.target(requests) + self.host[0]

    def seconds(self, requests: int, shape: TreeShape, levels: int, rows: int) -> float:
        forwards = head_forwards(requests, shape, levels)
        return self.target(rows) + self.host[1] + sum(times * self.head(size) for size, times in forwards)

    def measured(self, requests: int, rng: random.Random) -> CostModel:
        """As at an engine's start."""

        def curve(rows: int, seconds: Callable[[float], float]) -> CostCurve:
            sizes = sizes_up_to(rows)
            wrong = [self.mistaken if size > 1 else 1.0 for size in sizes]
            return CostCurve(
                tuple(sizes),
                tuple(
                    seconds(n) * w * math.exp(abs(rng.gauss(0, self.noise / 2)))
                    for n, w in zip(sizes, wrong, strict=True)
                ),
            )

        return CostModel(
            curve(requests * MAX_NODES, self.target), curve(requests * (MAX_DEPTH + 1), self.head)
        )


def _cpu(
    name: str, memory: float, row: float, head: float = 0.05, **more: float | tuple[float, float]
) -> Device:
    """SmolLM2-135M on two cores; `head`: its share of the target's seconds, in 8 bits whatever the target has."""
    return Device(name, memory, row, head * memory, head * row, 0.0, (3e-4, 6e-4), 0.04, **more)  # type: ignore[arg-type]


def _gpu(name: str, parameters: float, bandwidth: float, flops: float, **more: float) -> Device:
    """A target in bf16, a head of one layer with 32,000 draft tokens; rates as reached, not as printed."""
    head = 0.045 * parameters + 0.13e9
    return Device(
        name, 2 * parameters / bandwidth, 2 * parameters / flops, 2 * head / bandwidth, 2 * head / flops, 3e-4,
        (5e-5, 3.5e-4), 0.01, gpu=True, **more,
    )  # fmt: skip


CPU = _cpu("CPU without AMX", 5e-3, 4.6e-4)
# SmolLM2-135M in Q4_1 on two cores of a Zen 3, whose rounds vary by a seventh: a verify of two rows costs 1.25
# plain steps, so a fair head is worth a tenth.
AVX2 = Device("CPU, 4 bits, AVX2 alone", 4.5e-3, 2.3e-3, 5e-4, 1.9e-4, 0.0, (3e-4, 6e-4), 0.15)
H100 = _gpu("H100, 8B", 8e9, 2.9e12, 600e12)
DEVICES = [
    CPU,
    _cpu("CPU with AMX", 11e-3, 4.4e-4),
    _cpu("CPU without AMX, slow memory", 9e-3, 4.6e-4),
    _cpu("CPU, 8 bits, an L3 for both cores", 4.1e-3, 4.5e-4, 0.08),
    _cpu("CPU, 8 bits, an L3 for each", 3.3e-3, 4.5e-4, 0.08),
    _cpu("CPU, 4 bits, an L3 for both cores", 2.15e-3, 4.7e-4, 0.12),
    _cpu("CPU, 4 bits, an L3 for each", 1.4e-3, 5e-4, 0.14),
    _cpu("CPU with a busy neighbour", 5e-3, 4.6e-4, spells=(0.8, 0.5)),
    _cpu("CPU, first costs 4 times too high", 5e-3, 4.6e-4, mistaken=4.0),
    _cpu("CPU, first costs 4 times too low", 5e-3, 4.6e-4, mistaken=0.25),
    H100,
    _gpu("4 H100, 70B", 70e9, 4 * 2.7e12, 4 * 500e12),
    _gpu("H200, 8B", 8e9, 4.1e12, 600e12),
    _gpu("4 H200, 70B", 70e9, 4 * 3.9e12, 4 * 500e12),
    _gpu("H100, 8B, first costs 4 times too high", 8e9, 2.9e12, 600e12, mistaken=4.0),
    _gpu("H100, 8B, first costs 4 times too low", 8e9, 2.9e12, 600e12, mistaken=0.25),
]


class Moment(NamedTuple):
    """A kind of position in a text: how likely the head's best candidate is right, and what the head says it is."""

    share: float
    right: float
    claimed: float


@dataclass(frozen=True)
class DraftHead:
    """What the head is like for each kind of prompt, a mixture of moments.

    Neighbours in the batch have different kinds, and each gets the next kind after `turn` rounds.
    """

    name: str
    kinds: tuple[tuple[Moment, ...], ...]
    turn: int = 100


_GOOD = (Moment(0.4, 0.95, 0.93), Moment(0.4, 0.7, 0.66), Moment(0.2, 0.3, 0.35))
_POOR = (Moment(0.15, 0.8, 0.75), Moment(0.35, 0.4, 0.45), Moment(0.5, 0.1, 0.15))
_RANDOM = (Moment(1.0, 1e-4, 2e-3),)
HEADS = [
    DraftHead("good", (_GOOD,)),
    DraftHead("poor", (_POOR,)),
    DraftHead("random", (_RANDOM,)),
    DraftHead("random and sure of itself", ((Moment(1.0, 1e-4, 0.6),),)),
    DraftHead("good for one kind of prompt", (_GOOD, _RANDOM)),
]
# Requests at once; None: arrivals and departures.
LOADS: Sequence[int | None] = (1, 2, 4, 8, 16, 32, 64, 128, None)


class Trees(NamedTuple):
    """A moment's candidates of all levels, and what its best n of them are worth."""

    scores: torch.Tensor  # [C] claimed cumulative log probabilities
    depths: torch.Tensor  # [C]
    opens: list[float]  # by level: claimed probability of the frontier
    ends: list[int]  # by level: candidates up to it
    claimed: list[np.ndarray]  # by levels: [n, D] summed over the best n - 1, by depth
    true: list[np.ndarray]


@functools.cache
def grown(moment: Moment, topk: int) -> Trees:
    """Trees of a moment, grown level by level as `growth.py` does; deeper candidates are right a little less often."""

    def shares(best: float, depth: int) -> np.ndarray:
        first = best * 0.97**depth
        second = min(0.5 * first, 0.45 * (1 - first))
        return np.concatenate(([first], second * 0.5 ** np.arange(topk - 1)))

    claims, truths, depths, opens, ends = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, int)], [], []
    frontier = np.ones(1), np.ones(1)
    for depth in range(MAX_DEPTH):
        claim = (frontier[0][:, None] * shares(moment.claimed, depth)).ravel()
        truth = (frontier[1][:, None] * shares(moment.right, depth)).ravel() * (moment.right > 1e-3 or 1e-3)
        claims.append(claim)
        truths.append(truth)
        depths.append(np.full(len(claim), depth + 1))
        ends.append(sum(map(len, claims)))
        best = (-claim).argsort(kind="stable")[:topk]
        frontier = claim[best], truth[best]
        opens.append(float(frontier[0].sum()))
    score, truth, depth_of = map(np.concatenate, (claims, truths, depths))

    def by_depth(end: int, worth: np.ndarray) -> np.ndarray:
        order = (-score[:end]).argsort(kind="stable")[: MAX_NODES - 1]
        found = np.zeros((len(order) + 1, MAX_DEPTH))
        found[np.arange(1, len(order) + 1), depth_of[order] - 1] = worth[order]
        return found.cumsum(0)

    return Trees(
        torch.tensor(np.log(score), dtype=torch.float32), torch.tensor(depth_of), opens, ends,
        [by_depth(end, score) for end in ends], [by_depth(end, truth) for end in ends],
    )  # fmt: skip


class SimulatedDrafts(NamedTuple):
    """What the planner is shown of a round's trees: `Drafts`, whose trees have no tokens."""

    scores: torch.Tensor  # [B, C] cumulative log probabilities of the candidates
    depths: torch.Tensor  # [C]
    shape: TreeShape
    levels: list[torch.Tensor]
    sizes: list[int]
    proposal: None = None

    @property
    def tree(self) -> DraftTree:
        """The root and each request's best candidates; nodes that only others have are empty."""
        best = self.scores.sort(dim=1, descending=True, stable=True).indices[:, : self.shape.nodes - 1]
        empty = torch.arange(best.shape[1]) >= torch.tensor(self.sizes)[:, None]
        depths, log_probs = (
            torch.nn.functional.pad(column, (1, 0))
            for column in (
                self.depths[best].masked_fill(empty, 1),
                self.scores.gather(1, best).masked_fill(empty, -torch.inf),
            )
        )
        nothing = torch.zeros_like(depths)
        return DraftTree(nothing, nothing, depths, nothing, log_probs, nothing)

    @property
    def rows(self) -> int:
        """As in `Drafts`."""
        return len(self.sizes) + sum(self.sizes)


def plain_drafts(requests: int) -> SimulatedDrafts:
    """Of a plain round."""
    return SimulatedDrafts(
        torch.zeros(requests, 0), torch.zeros(0, dtype=torch.int64), PLAIN, [], [0] * requests
    )


class Draft(NamedTuple):
    """A simulated round's trees, what it is expected to bring, and a sample of that."""

    trees: SimulatedDrafts
    expected: float
    accepted: list[int]


def draft(plan: RoundPlan, moments: Sequence[Moment], rng: np.random.Generator) -> Draft:
    """Grow a tree for each of these requests as the plan wants them."""
    topk, requests = plan.bound.topk, len(moments)
    every = [grown(moment, topk) for moment in moments]
    level = 1
    while level < plan.bound.depth and decisions.goes_deeper(
        plan, level, [one.opens[level - 1] for one in every]
    ):
        level += 1
    end = every[0].ends[level - 1]
    scores, depths = torch.stack([one.scores[:end] for one in every]), every[0].depths[:end]
    own = decisions.nodes(plan, scores, depths)
    true = np.stack([one.true[level - 1][n] for one, n in zip(every, own, strict=True)])
    accepted = (rng.random((requests, 1)) < true).sum(1).tolist()
    starts = [0, *every[0].ends]
    levels = [scores[:, starts[n] : starts[n + 1]] for n in range(level)]
    shape = plan.bound.cut(level, 1 + max(own))
    trees = SimulatedDrafts(scores, depths, shape, levels, own)
    return Draft(trees, float(true.sum()), accepted)


def copy(plan: RoundPlan, requests: int, rng: np.random.Generator) -> Draft:
    """Prompt lookup alone: one request in twenty repeats itself, and each proposed token is right with 0.8."""
    found = rng.random(requests) < 0.05
    scores, depths = torch.full((requests, _LOOKUP), -torch.inf), torch.arange(1, _LOOKUP + 1)
    scores[torch.from_numpy(found)] = math.log(0.8) * depths
    own = np.array(decisions.nodes(plan, scores, depths))
    shape = plan.bound.cut(nodes=1 + int(own.max()))
    right = np.zeros(requests, int)
    if shape != PLAIN:
        right = np.minimum(rng.geometric(0.2, requests) - 1, own * found)
    expected = sum(sum(0.8**d for d in range(1, n + 1)) for n in own[found])
    trees = SimulatedDrafts(scores, depths, shape, [], own.tolist())
    return Draft(trees, expected, right.tolist())


class Spells:
    """How much slower a device is at a time: nothing most of the time, up to `most` for a while."""

    def __init__(self, most: float, length: float, rng: random.Random) -> None:
        self._most, self._length, self._rng = most, length, rng
        self._ends, self._now = 0.0, 0.0

    def at(self, seconds: float) -> float:
        while self._most and seconds >= self._ends:
            self._now = 0.0 if self._now else self._rng.uniform(0.1, self._most)
            self._ends += self._rng.expovariate(1 / self._length)
        return self._now


class Cell(NamedTuple):
    """What a planner made of a device, a head and a load, after the warm-up."""

    over_plain: float  # throughput over plain decode's
    over_best: float  # and over the better one of plain decode and the best fixed tree
    lost: float  # seconds that were lost to plain decode until the end of the warm-up
    first: int  # the first round in which the head might draft
    plans: list[TreeShape]  # of all rounds


def loads(load: int | None, rounds: int, most: int, rng: random.Random) -> list[int]:
    """Requests in each round."""
    if load is not None:
        return [load] * rounds
    found, requests = [], rng.randint(1, most)
    while len(found) < rounds:
        found += [requests] * rng.randint(5, 40)
        requests = min(max(requests + rng.choice([-4, -2, -1, 1, 2, 4]), 1), most)
    return found[:rounds]


def simulate(
    device: Device,
    head: DraftHead,
    load: int | None,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    recorded: bool = False,
) -> Cell:
    """Serve so many rounds. `recorded`: with the few trees of an engine whose rounds are CUDA graphs."""
    dice, rng = random.Random(seed), np.random.default_rng(seed)
    most = load or (64 if device.gpu else 16)
    sizes = loads(load, rounds, most, dice)
    planner = AdaptivePlanner(
        device.measured(most, dice),
        8,
        not device.gpu,
        0 if device.gpu else _LOOKUP,
        few=trees_for if recorded else None,
    )
    spells = Spells(*device.spells, dice)
    clock = behind = 0.0
    spent, plain, plans, first = np.zeros(rounds), np.zeros(rounds), [], rounds
    for number, requests in enumerate(sizes):
        plan = planner.choose(requests, behind=functools.partial(int, behind))
        drafted, late = None, 0.0
        seconds = device.plain(requests)
        if plan.drafts:
            first = min(first, number)
            kinds = [head.kinds[(number // head.turn + place) % len(head.kinds)] for place in range(requests)]
            moments = [dice.choices(kind, [one.share for one in kind])[0] for kind in kinds]
            drafted = draft(plan, moments, rng)
            late, behind = device.head(behind) if behind else 0.0, 0.0
        else:
            behind = min(behind + requests, 128.0 * requests)
            if plan.kind is Kind.LOOKUP:
                drafted = copy(plan, requests, rng)
        trees = plain_drafts(requests) if drafted is None else drafted.trees
        if plan.drafts or trees.shape != PLAIN:
            seconds = device.seconds(requests, trees.shape, len(trees.levels), trees.rows) + late
        tokens = requests + (0.0 if drafted is None else drafted.expected)
        accepted = [0] * requests if drafted is None else drafted.accepted
        spent[number], plain[number] = seconds, tokens * device.plain(requests) / requests
        plans.append(trees.shape)
        slower = math.exp(spells.at(clock) + dice.gauss(0.0, device.noise))
        clock += seconds * slower
        planner.learn(
            FinishedRound(plan, trees, None, [()] * requests, accepted, seconds * slower, late * slower, 0.0)
        )
    after = slice(min(WARM_UP, rounds // 3), None)
    over_plain = float(plain[after].sum() / spent[after].sum())
    return Cell(
        over_plain,
        over_plain / max(best_fixed(device, head, tuple(sizes[after])), 1.0),
        float((spent - plain)[: after.start].sum()),
        first,
        plans,
    )


@functools.cache
def best_fixed(device: Device, head: DraftHead, sizes: tuple[int, ...]) -> float:
    """Throughput of the best fixed tree over plain decode's."""
    counts = {requests: sizes.count(requests) for requests in set(sizes)}
    best = 0.0
    for topk in TOPKS:
        moments = [(one.share / len(head.kinds), grown(one, topk)) for kind in head.kinds for one in kind]
        for depth in range(1, MAX_DEPTH + 1):
            worth = sum(share * one.true[depth - 1].sum(1) for share, one in moments)
            for shape in trees(depth, topk, len(worth) - 1):
                tau = 1.0 + float(worth[shape.nodes - 1])
                plain = sum(times * tau * device.plain(n) for n, times in counts.items())
                spent = sum(
                    times * device.seconds(n, shape, depth, n * shape.nodes) for n, times in counts.items()
                )
                best = max(best, plain / spent)
    return best


def cells() -> Iterator[tuple[Device, DraftHead, int | None]]:
    """All of them. A CPU engine has up to 32 requests at once, a GPU's up to 128."""
    for device in DEVICES:
        for head in HEADS:
            for load in LOADS:
                if device.gpu or load is None or load <= 32:
                    yield device, head, load


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="JSON for the docs' chart of GPUs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="devices whose names hold this")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for device, head, load in cells():
        if given.only not in device.name:
            continue
        cell = simulate(device, head, load, seed=given.seed)
        bad = (
            ""
            if cell.over_plain >= 0.99 and cell.over_best >= 0.95 and cell.lost <= 0.6 and cell.first < 32
            else "  <--"
        )
        print(
            f"{device.name:40s} {head.name:28s} {load or 'changing':>8}  {cell.over_plain:5.2f} of plain "
            f"{cell.over_best:5.2f} of the best  {cell.lost:6.2f} s lost  first draft {cell.first}{bad}",
            flush=True,
        )
        if load is not None and device.gpu and device.mistaken == 1.0 and head in HEADS[:3]:
            found.setdefault(device.name, {}).setdefault(head.name, {})[str(load)] = round(cell.over_plain, 3)
    if given.output:
        record = {
            "command": f"python -m tests.engine.devices --output {given.output}",
            "date": date.today().isoformat(),
            "note": "simulated",
            "devices": found,
        }
        given.output.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
