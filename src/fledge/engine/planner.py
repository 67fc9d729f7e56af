"""How much to speculate in the next round: not at all, or how deep, how wide and with how many nodes.

A serving engine earns tokens and spends seconds. At a rate of mu tokens per second, anything that takes t seconds has
to bring more than mu * t tokens (renewal reward); that one rule decides everything here:

    another draft level     expected tokens of the next level           >  mu * seconds of a draft step and a row more
    n nodes to verify       sum of the n best nodes' probabilities      -  mu * seconds of a verify of n rows: the most
    speculation at all      tokens per second with it                   >  tokens per second without it

Seconds come from the cost curves measured at start, corrected by what rounds really took; the moods of a machine that
others use, too, are kept out of the comparison (see `pace.py`). Probabilities are the head's own, calibrated by depth
with what was accepted (see `beliefs.py`). Where reading a probability is free (on a CPU) every round decides by its own
tree; elsewhere by the averages of the last rounds, so that no round waits for a value.

While speculation doesn't pay it is tried now and then, each time right after a plain round, but all tries together,
with what the head has to catch up on, may take no more than a hundredth of the time, and less after tries in vain.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fledge.engine.beliefs import Beliefs
from fledge.engine.cost import CostCurve, CostModel
from fledge.engine.layout import PLAIN, TreeShape
from fledge.engine.learnt import LearntCurve
from fledge.engine.lookup import MatchRates
from fledge.engine.pace import Kind, Pace
from fledge.engine.plans import ConfidentPlan, RoundPlan
from fledge.engine.shapes import MAX_DEPTH, NODES, TOPKS, PlannedShape, copies, deepest, trees

_GROUPS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_REPLAN_ROUNDS = 32
_PLAIN_ROUNDS_AGE = 0.125  # of a round: without drafts hardly anything new is learnt
_EARLY_ROUNDS = (2, 4, 8, 16)  # of a batch size, plain or not: planned anew
_LOOK_ROUNDS = 4  # between looks at a whole tree's probabilities, by shape
_GAIN_STEP = 0.02  # least weight of a new measurement,
_LARGEST_GAIN = 8.0  # and the most it may say
_GAIN_PRIOR = 16  # rounds of a request that the first guess is worth
_ENTER, _LEAVE = 1.03, 0.99  # speculation over plain: what it takes to begin, and to go on
_PLAIN_TRY_ROUNDS = (8, 128)  # between tries of plain decode while speculation isn't far ahead: doubles
_FAR_AHEAD = 1.5
# Lookup's drafts over none: what it takes to ask for them, and what they may lack of that to go on with one request, as
# rounds of many tell more; the weight of a new measurement, and of hope.
_ASK, _ASK_LESS, _COPY_STEP, _HOPE = 0.997, 0.025, 0.01, 0.004
_PLAIN_AMONG_COPIES = 16  # rounds between those that aren't asked for copies, while they pay
_PAYBACK_ROUNDS = 32  # in which speculation has to bring in what the head's catching up takes
_TRY_LENGTH = 3  # rounds of a try of speculation
# Of all time, for tries that don't pay: at first, and after many, each of which halves it. Seconds to begin with.
_TRY_SHARE, _LEAST_TRY_SHARE, _FIRST_CREDIT = 0.008, 0.001, 0.02
_START_ROUNDS = 32  # of a batch size, that follow what was tuned


@dataclass
class _BatchSize:
    """What is remembered of a batch size, or of the group of sizes it belongs to."""

    # Tokens per second over plain decode's, by predicted seconds, of speculation with the head,
    drafted: float
    copied: float = 1.0  # and of lookup's drafts without it
    speculates: bool = False
    copies: bool = True  # these are asked for
    try_share: float = _TRY_SHARE
    since_plain: int = 1  # rounds since a plain one,
    plain_wait: int = _PLAIN_TRY_ROUNDS[0]  # and until it is tried again


@functools.cache
def _group(requests: int) -> int:
    """Batch sizes that share what was measured: up to 4 each its own, then half a power of two apart."""
    return requests if requests <= 4 else next(n for n in _GROUPS if requests <= n or n == _GROUPS[-1])


class Planner:
    """Plans rounds and learns from what came of them. One per engine."""

    learns = True  # from more than what matches of prompt lookup came to

    def __init__(
        self,
        cost: CostModel,
        *,
        topk: int,
        confident: bool,
        lookup: int = 0,
        start: Mapping[int, TreeShape] | None = None,
    ) -> None:
        """`topk` bounds the trees' width; `confident`: rounds may look at their own probabilities.

        `lookup`: most tokens prompt lookup proposes. `start`: by batch size, the shape to begin with.
        """
        self.cost = cost
        self.beliefs = Beliefs(MAX_DEPTH, topk, max(MAX_DEPTH, lookup))
        self.match_rates = MatchRates()
        self._lookup = lookup
        self._start = dict(start or {})
        self.records: dict[TreeShape, PlannedShape] = {}
        self._confident = confident
        self._topks = [k for k in TOPKS if k <= topk]
        # By batch size: the best shape and its tokens per second, as predicted.
        self._bounds: dict[int, tuple[TreeShape, float]] = {}
        self._age = 0.0
        self._pace = Pace()  # measured over predicted seconds, by group of batch sizes,
        self._measured: dict[tuple[int, Kind], int] = {}  # and how often
        self._target, self._head = LearntCurve(cost.target), LearntCurve(cost.head)
        self._mood = 0.0  # the machine's, as a logarithm
        self._sizes: dict[int, _BatchSize] = {}
        # What follows from all this, until something is learnt: by batch size the best shape and how much faster than
        # without the head it is, and plans.
        self._judged: dict[int, tuple[TreeShape, float]] = {}
        self._plans: dict[tuple[TreeShape, int], ConfidentPlan] = {}
        self._try_left = 0
        self._credit = _FIRST_CREDIT  # seconds tries may take

    def choose(self, requests: int, *, behind: int = 0) -> RoundPlan | None:
        """The plan of the next round; None: plain decode. `behind`: positions the head has to catch up on first."""
        plan, size = self._decide(requests, behind), self._size(requests)
        size.since_plain = 0 if plan is None else size.since_plain + 1
        return plan

    def _decide(self, requests: int, behind: int) -> RoundPlan | None:
        self._age += 1.0 if self._size(requests).speculates else _PLAIN_ROUNDS_AGE
        if self._age >= _REPLAN_ROUNDS:
            self._bounds.clear()
            self._forget_conclusions()
            self._age = 0.0
        start = self._starting(requests)
        if start is not None:
            self._size(requests).speculates = start != PLAIN
            return self._plan(start, requests)
        shape, ratio = self._judge(requests)
        if self._try_left:
            self._try_left -= 1
            return self._plan(shape, requests)
        size = self._size(requests)
        late = self.cost.head.at(behind) if behind else 0.0
        enter = _ENTER + late * self._plain_speed(requests) / (_PAYBACK_ROUNDS * requests)
        size.speculates = ratio > (_LEAVE if size.speculates else enter)
        if not size.speculates:
            if self._credit < late or size.since_plain or shape == PLAIN:
                return self._copying(requests)
            self._try_left = _TRY_LENGTH - 1
            return self._plan(shape, requests)
        known = self._measured.get((_group(requests), Kind.PLAIN), 0) > 1
        if size.since_plain >= size.plain_wait and (ratio < _FAR_AHEAD or not known):
            size.plain_wait = min(2 * size.plain_wait, _PLAIN_TRY_ROUNDS[1])
            return None
        return self._plan(shape, requests)

    def pays(self, requests: int) -> bool:
        """Whether speculation is expected to pay at this batch size."""
        return self._saved(requests) > 0

    def is_settled(self, requests: int, *, drafted: bool) -> bool:
        """Whether rounds with the head, or without, are the rule at this batch size.

        Their first timings, which change most, are known by then.
        """
        known = self._measured.get((_group(requests), Kind.DRAFTED if drafted else Kind.PLAIN), 0)
        return self._size(requests).speculates == drafted and known >= _EARLY_ROUNDS[-1]

    def rereads(self, tokens: int, answer: int, requests: int) -> bool:
        """Whether `tokens` of a prompt are worth running again for the head, which hasn't seen them.

        `answer`: tokens still to come, at most. A head that begins behind them drafts worse; at worst all that
        speculation saves is lost.
        """
        return answer * self._saved(requests) > self.cost.target.at(tokens + 1) - self.cost.target.at(1)

    def _saved(self, requests: int) -> float:
        """Seconds per token that speculation is expected to save at this batch size; 0 where it doesn't pay."""
        (shape, speed), plain = self._best(requests), self.headless_speed(requests)
        return 1 / plain - 1 / speed if shape != PLAIN and speed > _ENTER * plain else 0.0

    def observe(
        self,
        shape: TreeShape | None,
        requests: int,
        seconds: float,
        depths: Sequence[int],
        masses: Sequence[float] = (),
        levels: Sequence[Tensor] = (),
        *,
        catch_up: float = 0.0,
        rows: int | None = None,
        asked: bool = False,
    ) -> None:
        """Learn from a round.

        `shape` is the verified tree's, None: plain. `depths` are the accepted depths of the requests that speculated,
        `masses` the verified nodes' summed probabilities by depth, 1 first, `levels` the drafted levels' cumulative
        log probabilities [B, C]. `catch_up` seconds came before the round. `rows` were verified; left out, the shape's.
        `asked`: lookup was, without the head, whether it had anything to propose or not.
        """
        self._forget_conclusions()
        tokens = requests + sum(depths)
        record = self.count(shape, requests, tokens, seconds)
        drafted = shape is not None and bool(levels or shape.depth)
        kind = Kind.DRAFTED if drafted else Kind.COPIED if asked else Kind.PLAIN
        predicted = self._time_round(kind, shape, requests, seconds, len(levels), rows)
        size = self._size(requests)
        if asked:
            size.copied += _COPY_STEP * (self._over_plain(requests, tokens / predicted) - size.copied)
        elif not size.copies:
            size.copied += _HOPE * (1 - self._copied(requests))
        if shape is not None and drafted:
            self.beliefs.observe(depths, masses)
            if levels and record.rounds % _LOOK_ROUNDS == 1:
                self.beliefs.observe_levels(levels, MAX_DEPTH if self._confident else len(levels))
            measured = min(self._over_plain(requests, tokens / predicted), _LARGEST_GAIN)
            times = self._measured[_group(requests), kind] + _GAIN_PRIOR / requests
            size.drafted += max(_GAIN_STEP, 1 / times) * (measured - size.drafted)
        self._keep_books(requests, drafted, seconds + catch_up, tokens)

    def count(self, shape: TreeShape | None, requests: int, tokens: int, seconds: float) -> PlannedShape:
        """Take note of a round; nothing is learnt from it."""
        record = self.records.setdefault(shape or PLAIN, PlannedShape(shape or PLAIN))
        record.rounds += 1
        record.requests += requests
        record.tokens += tokens
        record.seconds += seconds
        return record

    def _time_round(
        self,
        kind: Kind,
        shape: TreeShape | None,
        requests: int,
        seconds: float,
        levels: int,
        rows: int | None,
    ) -> float:
        """Take in what a whole round took; what was predicted for it, in seconds."""
        predicted = self.cost.plain_seconds(requests if rows is None else rows)
        if kind == Kind.DRAFTED and shape is not None:
            predicted = self.cost.round_seconds(requests, shape, levels or None, rows)
        predicted = max(predicted, 1e-9)
        key = _group(requests), kind
        self._pace.observe(*key, seconds / predicted)
        times = self._measured[key] = self._measured.get(key, 0) + 1
        if self._confident and times in _EARLY_ROUNDS:  # the first timings of a batch size change most
            self._bounds.pop(requests, None)
        return predicted

    def time(
        self, requests: int, shape: TreeShape | None, levels: int, rows: int, draft: float, verify: float
    ) -> None:
        """Take in how long a round's draft steps and its verify of `rows` took, in seconds; `shape` None: plain."""
        self._forget_conclusions()
        self._mood = self._target.learn(rows, verify, self._mood)
        if shape is not None and shape.depth and levels > 1:
            self._head.learn(requests * shape.topk, draft / (levels - 1), self._mood)
        self.cost = CostModel(self._target.curve, self._head.curve)

    def rate(self, requests: int) -> float:
        """mu: tokens per second at this batch size, over all requests."""
        return max(self._best(requests)[1], self.headless_speed(requests))

    def headless_speed(self, requests: int) -> float:
        """Tokens per second at this batch size without the head, lookup's drafts included where they help."""
        return self._plain_speed(requests) * max(self._copied(requests), 1.0)

    @property
    def hoped(self) -> CostCurve:
        """What a verify may be hoped to cost."""
        return self._target.hoped

    def scale(self, requests: int, *, drafts: bool = True) -> float:
        """Measured over predicted seconds of rounds with the head, or without, at this batch size."""
        return self._pace.slower(_group(requests), Kind.DRAFTED if drafts else Kind.PLAIN)

    def explain(self) -> list[PlannedShape]:
        """What was used and what came of it, most used first."""
        return sorted(self.records.values(), key=lambda record: -record.rounds)

    def _starting(self, requests: int) -> TreeShape | None:
        """What was tuned for the nearest batch size, while little is known of this one; None: the planner knows."""
        if not self._start:
            return None
        if sum(self._measured.get((_group(requests), kind), 0) for kind in Kind) >= _START_ROUNDS:
            return None
        return self._start[min(self._start, key=lambda size: (abs(size - requests), size))]

    def _plan(self, shape: TreeShape, requests: int) -> RoundPlan | None:
        if shape == PLAIN:
            return None
        if not self._confident:
            return RoundPlan(replace(shape, lookup=self._lookup), self.match_rates)
        return self._confident_plan(deepest(shape.topk, self._lookup), requests)

    def _confident_plan(self, bound: TreeShape, requests: int) -> ConfidentPlan:
        found = self._plans.get((bound, requests))
        if found is None:
            found = self._plans[bound, requests] = ConfidentPlan(bound, self, requests)
        return found

    def _judge(self, requests: int) -> tuple[TreeShape, float]:
        """The best speculative shape, and its tokens per second over those without the head."""
        found = self._judged.get(requests)
        if found is None:
            shape, speed = self._best(requests)
            found = self._judged[requests] = shape, speed / self.headless_speed(requests)
        return found

    def _forget_conclusions(self) -> None:
        self._judged.clear()
        self._plans.clear()

    def _copying(self, requests: int) -> RoundPlan | None:
        """Without the head: lookup's drafts, while they pay; hope gives them another chance later."""
        if not self._confident or not self._lookup:
            return None
        size = self._size(requests)
        size.copies = self._copied(requests) > _ASK - size.copies * _ASK_LESS / math.sqrt(requests)
        if not size.copies or size.since_plain >= _PLAIN_AMONG_COPIES:
            return None
        return self._confident_plan(copies(self._lookup), requests)

    def _keep_books(self, requests: int, speculative: bool, seconds: float, tokens: int) -> None:
        """Tries are paid from a share of all time; what a try costs is what plain decode would have taken less."""
        size = self._size(requests)
        self._credit = min(self._credit + size.try_share * seconds, 1.0)
        if size.speculates:
            size.try_share = _TRY_SHARE
        elif speculative:
            lost = seconds - tokens / self.headless_speed(requests)
            self._credit -= max(lost, 0.0)
            if lost > 0 and not self._try_left:
                size.try_share = max(size.try_share / 2, _LEAST_TRY_SHARE)

    def _size(self, requests: int) -> _BatchSize:
        """What is remembered of this batch size; a new one is taken to exceed predictions as the nearest one does."""
        group = _group(requests)
        if group not in self._sizes:
            drafted = self._expected(requests)
            if self._sizes:
                nearest = min(self._sizes, key=lambda other: abs(other - group))
                drafted *= self._sizes[nearest].drafted / self._expected(nearest)
            self._sizes[group] = _BatchSize(drafted)
        return self._sizes[group]

    def _expected(self, requests: int) -> float:
        """`_BatchSize.drafted` as predicted."""
        return self._over_plain(requests, self._predicted(requests)[1])

    def _over_plain(self, requests: int, speed: float) -> float:
        """Tokens per second over those of plain decode, by predicted seconds."""
        return speed * self.cost.plain_seconds(requests) / requests

    def _copied(self, requests: int) -> float:
        """Tokens per second with lookup's drafts, without the head, over those of plain decode."""
        return self._size(requests).copied / self._pace.extra(_group(requests), Kind.COPIED)

    def _plain_speed(self, requests: int) -> float:
        return requests / max(self.cost.plain_seconds(requests) * self.scale(requests, drafts=False), 1e-9)

    def _best(self, requests: int) -> tuple[TreeShape, float]:
        """The best speculative shape by averages, and the tokens per second that speculation has brought."""
        predicted = self.cost.plain_seconds(requests) * self.scale(requests)
        return self._predicted(requests)[0], self._size(requests).drafted * requests / max(predicted, 1e-9)

    def _predicted(self, requests: int) -> tuple[TreeShape, float]:
        """The shape, and its tokens per second by cost curves and beliefs alone. Kept for some rounds."""
        found = self._bounds.get(requests)
        if found is None:
            found = self._bounds[requests] = self._search(requests)
        return found

    def _search(self, requests: int) -> tuple[TreeShape, float]:
        best, most = PLAIN, -math.inf
        verify = {nodes: self.cost.target.at(requests * nodes) for nodes in NODES}
        for topk in self._topks:
            for depth in range(1, MAX_DEPTH + 1):
                worth = self.beliefs.best_nodes(depth, topk).tolist()
                head = self.cost.head_seconds(requests, depth, topk)
                for shape in trees(depth, topk, len(worth)):
                    tau = 1.0 + worth[shape.nodes - 2]
                    speed = requests * tau / max(verify[shape.nodes] + head, 1e-9)
                    if speed > most:
                        best, most = shape, speed
        return best, most
