"""How much to speculate in the next round: not at all, or how deep, how wide and with how many nodes.

A serving engine earns tokens and spends seconds. Let mu be the tokens per second that it earns at the present batch
size. Then anything that takes t seconds has to bring more than mu * t tokens, or the time is better spent otherwise
(renewal reward). That one rule decides everything:

    another draft level     expected tokens of the next level           >  mu * seconds of a draft step and a row more
    n nodes to verify       sum of the n best nodes' probabilities      -  mu * seconds of a verify of n rows: the most
    speculation at all      tokens per second with the head             >  tokens per second without it

This file takes the last decision, `plans.py` the first two while a tree grows. What they go by is learnt from rounds
(which ones: `feedback.py`):

    speeds.py       mu, and the tokens per second with the head and without it
    cost.py         seconds of a forward by its rows: measured at start, corrected by what forwards take
    acceptance.py   expected tokens: the head's probabilities, calibrated by depth with what was accepted
    pace.py         how slow the machine is just now, so that this doesn't count for or against speculation

Where reading a probability is free (on a CPU) every round decides by its own tree; elsewhere by the averages of the
last rounds, so that no round waits for a value.

While speculation doesn't pay it is tried now and then, each time right after a plain round. All tries together, with
what the head has to catch up on, may take no more than a hundredth of the time, and less after tries in vain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fledge.engine.cost import CostModel
from fledge.engine.lookup import MatchRates
from fledge.engine.pace import Kind
from fledge.engine.plans import ConfidentPlan, RoundPlan
from fledge.engine.shapes import MAX_DEPTH, PLAIN, PlannedShape, TreeShape, deepest, lookup_alone
from fledge.engine.speeds import EARLY_ROUNDS, Speeds, group_of

_SEARCH_ROUNDS = 32  # between searches for the best tree
_PLAIN_ROUNDS_AGE = 0.125  # of a round: without drafts hardly anything new is learnt
_LOOK_ROUNDS = 4  # between looks at a whole tree's probabilities, by shape
_ENTER, _LEAVE = 1.03, 0.99  # speed with the head over that without: what it takes to begin, and to go on
_PAYBACK_ROUNDS = 32  # in which speculation has to bring in what the head's catching up takes
# Rounds between plain ones while speculation pays, to compare: doubles from first to last.
_PLAIN_TRY_ROUNDS = (8, 128)
_FAR_AHEAD = 1.5  # where speculation is so much faster there is nothing to compare
# Lookup's gain over plain decode: what it takes to ask for lookup, and how much less is enough to go on asking. That
# is for one request; a round of many requests says more about the gain.
_ASK, _ASK_LESS = 0.997, 0.025
_PLAIN_AMONG_LOOKUP = 16  # rounds between plain rounds while lookup pays
_TRY_LENGTH = 3  # rounds of a try of speculation
# The share of all time that tries may lose: at first, and at least, as each try in vain halves it. Then seconds to
# begin with.
_TRY_SHARE, _LEAST_TRY_SHARE, _FIRST_CREDIT = 0.008, 0.001, 0.02
_START_ROUNDS = 32  # of a batch size, that follow what was tuned


@dataclass
class _BatchSize:
    """What is done at a batch size, or in the group of sizes it belongs to."""

    speculates: bool = False  # with the head
    asks_lookup: bool = True  # in rounds without the head
    try_share: float = _TRY_SHARE
    since_plain: int = 1  # rounds since a plain one,
    plain_wait: int = _PLAIN_TRY_ROUNDS[0]  # and until it is tried again


class Planner:
    """Plans rounds and learns from what came of them. One per engine."""

    learns = True  # False: from no more than what matches of prompt lookup came to

    def __init__(
        self,
        cost: CostModel,
        *,
        topk: int,
        confident: bool,
        lookup: int = 0,
        start: Mapping[int, TreeShape] | None = None,
    ) -> None:
        """`cost` as measured at start. `topk` bounds the trees' width.

        `confident`: rounds may look at their own probabilities. `lookup`: most tokens prompt lookup proposes. `start`:
        by batch size, the shape to begin with.
        """
        self.speeds = Speeds(cost, topk=topk, confident=confident, lookup=lookup)
        self.match_rates = MatchRates()
        self.records: dict[TreeShape, PlannedShape] = {}
        self._confident, self._lookup, self._start = confident, lookup, dict(start or {})
        self._sizes: dict[int, _BatchSize] = {}
        self._age = 0.0  # rounds since the last search for the best trees
        # What follows from all that is known, until something is learnt: by batch size, with the head over without
        # it; and plans.
        self._ratios: dict[int, float] = {}
        self._plans: dict[tuple[TreeShape, int], ConfidentPlan] = {}
        # What is the rule: at this batch size, this plan.
        self._usual: tuple[int, RoundPlan | None] | None = None
        self._try_left = 0  # rounds of the present try
        self._credit = _FIRST_CREDIT  # seconds tries may take

    def choose(self, requests: int, *, behind: Callable[[], int] = lambda: 0) -> RoundPlan | None:
        """The plan of the next round; None: plain decode. `behind`: positions the head has to catch up on first.

        Until something is learnt, what was the rule in one round is in the next one.
        """
        usual, size = self._usual, self._size(requests)
        plan = usual[1] if usual and usual[0] == requests else self._decide(requests, behind())
        size.since_plain = 0 if plan is None else size.since_plain + 1
        return plan

    def _decide(self, requests: int, behind: int) -> RoundPlan | None:
        """What was tuned, at first; the rest of a try; else with the head or without it, whichever is faster.

        Where it is the head, a plain round now and then; where it isn't, a try of the head as far as `_credit` allows.
        """
        size = self._size(requests)
        self._age += 1.0 if size.speculates else _PLAIN_ROUNDS_AGE
        if self._age >= _SEARCH_ROUNDS:
            self.speeds.search_anew()
            self._forget_conclusions()
            self._age = 0.0
        tuned = self._tuned(requests)
        if tuned is not None:
            size.speculates = tuned != PLAIN
            return self._plan(tuned, requests)
        shape, ratio = self.speeds.best_tree(requests)[0], self._ratio(requests)
        if self._try_left:
            self._try_left -= 1
            return self._plan(shape, requests)
        late = self.speeds.cost.head.at(behind) if behind else 0.0
        enter = _ENTER + late * self.speeds.plain(requests) / (_PAYBACK_ROUNDS * requests)
        size.speculates = ratio > (_LEAVE if size.speculates else enter)
        if not size.speculates:
            if self._credit < late or size.since_plain or shape == PLAIN:
                return self._without_head(requests)
            self._try_left = _TRY_LENGTH - 1
            return self._plan(shape, requests)
        known = self.speeds.rounds(requests, Kind.PLAIN) > 1
        if size.since_plain >= size.plain_wait and (ratio < _FAR_AHEAD or not known):
            size.plain_wait = min(2 * size.plain_wait, _PLAIN_TRY_ROUNDS[1])
            return None
        self._usual = requests, self._plan(shape, requests)
        return self._usual[1]

    def pays(self, requests: int) -> bool:
        """Whether speculation is expected to pay at this batch size."""
        return self._saved(requests) > 0

    def is_settled(self, requests: int, *, drafted: bool) -> bool:
        """Whether rounds with the head, or without, are the rule at this batch size.

        Their first timings, which change most, are known by then.
        """
        known = self.speeds.rounds(requests, Kind.HEAD if drafted else Kind.PLAIN)
        return self._size(requests).speculates == drafted and known >= EARLY_ROUNDS[-1]

    def rereads(self, tokens: int, answer: int, requests: int) -> bool:
        """Whether `tokens` of a prompt are worth running again for the head, which hasn't seen them.

        `answer`: tokens still to come, at most. A head that begins behind them drafts worse; at worst all that
        speculation saves is lost.
        """
        target = self.speeds.cost.target
        return answer * self._saved(requests) > target.at(tokens + 1) - target.at(1)

    def _saved(self, requests: int) -> float:
        """Seconds per token that speculation is expected to save at this batch size; 0 where it doesn't pay."""
        shape, with_head = self.speeds.best_tree(requests)[0], self.speeds.with_head(requests)
        without = self.speeds.without_head(requests)
        return 1 / without - 1 / with_head if shape != PLAIN and with_head > _ENTER * without else 0.0

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
        `asked`: a round without the head asked prompt lookup, whether that had anything to propose or not.
        """
        self._forget_conclusions()
        tokens = requests + sum(depths)
        record = self.count(shape, requests, tokens, seconds)
        head = shape is not None and bool(levels or shape.depth)
        cost = self.speeds.cost
        if shape is not None and head:
            kind, predicted = Kind.HEAD, cost.round_seconds(requests, shape, len(levels) or None, rows)
        else:
            kind = Kind.LOOKUP if asked else Kind.PLAIN
            predicted = cost.plain_seconds(requests if rows is None else rows)
        self.speeds.observe(kind, requests, tokens, seconds, predicted)
        if not asked and not self._size(requests).asks_lookup:
            self.speeds.hope(requests)
        if head:
            self.speeds.acceptance.observe(depths, masses)
            if levels and record.rounds % _LOOK_ROUNDS == 1:
                most = MAX_DEPTH if self._confident else len(levels)
                self.speeds.acceptance.observe_levels(levels, most)
        self._keep_books(requests, head, seconds + catch_up, tokens)

    def pass_over(
        self, shape: TreeShape | None, requests: int, tokens: int, seconds: float, *, catch_up: float = 0.0
    ) -> None:
        """Take note of a round like those before it: nothing is learnt but that tries may take a bit more time."""
        self.count(shape, requests, tokens, seconds)
        self._credit = min(self._credit + self._size(requests).try_share * (seconds + catch_up), 1.0)

    def count(self, shape: TreeShape | None, requests: int, tokens: int, seconds: float) -> PlannedShape:
        """Take note of a round; nothing is learnt from it."""
        record = self.records.setdefault(shape or PLAIN, PlannedShape(shape or PLAIN))
        record.rounds += 1
        record.requests += requests
        record.tokens += tokens
        record.seconds += seconds
        return record

    def time(
        self, requests: int, shape: TreeShape | None, levels: int, rows: int, draft: float, verify: float
    ) -> None:
        """Take in how long a round's draft steps and its verify of `rows` took, in seconds; `shape` None: plain."""
        self._forget_conclusions()
        topk, steps = (shape.topk, levels - 1) if shape is not None and shape.depth else (1, 0)
        self.speeds.time(requests, topk, steps, rows, draft, verify)

    def explain(self) -> list[PlannedShape]:
        """What was used and what came of it, most used first."""
        return sorted(self.records.values(), key=lambda record: -record.rounds)

    def _tuned(self, requests: int) -> TreeShape | None:
        """What was tuned for the nearest batch size, while little is known of this one; None: the planner knows."""
        if not self._start or sum(self.speeds.rounds(requests, kind) for kind in Kind) >= _START_ROUNDS:
            return None
        return self._start[min(self._start, key=lambda size: (abs(size - requests), size))]

    def _plan(self, shape: TreeShape, requests: int) -> RoundPlan | None:
        """With the head. A plan that looks at the tree's own probabilities needs only its width."""
        if shape == PLAIN:
            return None
        if not self._confident:
            return RoundPlan(replace(shape, lookup=self._lookup), self.match_rates)
        return self._confident_plan(deepest(shape.topk, self._lookup), requests)

    def _without_head(self, requests: int) -> RoundPlan | None:
        """Lookup's drafts alone, while they pay; None: plain decode."""
        plan = None
        if self._confident and self._lookup:
            size = self._size(requests)
            least = _ASK - size.asks_lookup * _ASK_LESS / math.sqrt(requests)
            size.asks_lookup = self.speeds.lookup_gain(requests) > least
            if size.asks_lookup and size.since_plain >= _PLAIN_AMONG_LOOKUP:
                return None
            if size.asks_lookup:
                plan = self._confident_plan(lookup_alone(self._lookup), requests)
        self._usual = requests, plan
        return plan

    def _confident_plan(self, bound: TreeShape, requests: int) -> ConfidentPlan:
        found = self._plans.get((bound, requests))
        if found is None:
            found = ConfidentPlan(bound, self.speeds, requests, self.match_rates)
            self._plans[bound, requests] = found
        return found

    def _ratio(self, requests: int) -> float:
        """Tokens per second with the head over those without it."""
        found = self._ratios.get(requests)
        if found is None:
            found = self.speeds.with_head(requests) / self.speeds.without_head(requests)
            self._ratios[requests] = found
        return found

    def _forget_conclusions(self) -> None:
        self._usual = None
        self._ratios.clear()
        self._plans.clear()

    def _keep_books(self, requests: int, head: bool, seconds: float, tokens: int) -> None:
        """Tries are paid from a share of all time; what a try costs is the time that it lost."""
        size = self._size(requests)
        self._credit = min(self._credit + size.try_share * seconds, 1.0)
        if size.speculates:
            size.try_share = _TRY_SHARE
        elif head:
            lost = seconds - tokens / self.speeds.without_head(requests)
            self._credit -= max(lost, 0.0)
            if lost > 0 and not self._try_left:
                size.try_share = max(size.try_share / 2, _LEAST_TRY_SHARE)

    def _size(self, requests: int) -> _BatchSize:
        group = group_of(requests)
        found = self._sizes.get(group)
        if found is None:
            found = self._sizes[group] = _BatchSize()
        return found
