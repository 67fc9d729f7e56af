"""Choice of the next round's kind: plain, prompt lookup alone, or the head.

At every batch size one of the three is the rule: the one with the most tokens per second (`speed.py`). The others are
tried now and then, since nothing is learnt about what isn't used, and tried early whatever the estimates say:

    round   1     | 2  3  4 | 5  6  7 |  8 ...                 a new batch size, whose rule is plain decode
            plain | head    | lookup  |  plain ... | head ...  tries come 8, 16, 32, ... rounds after each other

Speculative tries are paid for from a credit: a few rounds at the start plus a small share of all rounds since, so a
worthless head costs less than 1 %. A batch size's first try is free. So is a plain round, which costs no more than not
speculating.

On a CPU, where reading a probability is free, every round decides by its own tree. On a GPU it decides by averages over
the last rounds, so that no round waits for a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fledge.engine.drafters.proposal import MatchRates
from fledge.engine.planner.acceptance import AcceptanceModel
from fledge.engine.planner.cost import CostModel
from fledge.engine.planner.finished import FinishedRound
from fledge.engine.planner.plan import Kind, RoundPlan, Terms
from fledge.engine.planner.speed import Speeds, group_of
from fledge.engine.shapes import MAX_DEPTH, PLAIN, TreeShape, deepest, lookup_alone

# Factors on a kind's gain over plain decode, while it is the rule and while it isn't: a hysteresis.
_STAY, _ENTER = (1.0, 1.0, 1.01), (1.0, 1.0, 0.97)  # by kind
# Added to lookup's gain, the first divided by the root of the batch size. Lookup is cheap, so a small batch uses it
# unless it loses; a large one, whose rounds measure its gain well, only if it pays.
_ASK, _ASK_LESS = 0.02, 0.006
_PAYBACK_ROUNDS = 96  # within which speculation has to earn back the head's catching up
# Rounds in one speculative try, at most, and requests after which it ends, counted over its rounds. Where the head may
# well pay its rounds cost next to nothing, and a few of them tell little: such a try is so many times as long.
_TRY_ROUNDS, _TRY_REQUESTS, _LONGER, _CLOSE = 3, 6, 4, 0.93
_FIRST_WAIT = 8  # rounds between a kind's first and second try; each wait is twice as long as the one before,
_LONGEST_WAIT = (128, 512, 512)  # up to these, by kind,
_PLAIN_AMONG_LOOKUP = 16  # or this, as lookup's gain is a matter of a few percent
_ASK_AGAIN = 4  # rounds until a try that the credit couldn't pay for is considered again
_REVIEW = 16  # rounds until the rule is reconsidered if nothing is learnt
_FAR_AHEAD, _KNOWN = 1.5, 3  # gain of the rule above which a kind seen in so many rounds isn't tried again
_HOST_STEP, _HOST_LONGEST = 0.1, 4.0  # weight of a new host time, and how many times what is known it may be
_LOOKUP_MARGIN = 1.25  # on the price of lookup's rows: drafted rounds also cost the host more than plain ones
# An engine's first rounds with the head use one typical tree of about so many rows (GPU, CPU), to learn what
# wide and deep trees cost.
_FIRST_TREES, _FIRST_ROWS, _FIRST_CPU_ROWS = 2, 512, 32
_HOPING = 16  # first rounds with the head, planned with optimistic costs so that larger trees are tried
# A first try divides its costs by this: costs measured during a slow spell would otherwise rule out drafts for good.
_HOPE = 4.0
# The credit for tries, in plain rounds: at the start, added per round, at most. Then the longest catching up with
# which the head still gets its first try.
_FIRST_CREDIT, _TRY_SHARE, _MOST_CREDIT, _LATEST = 4.0, 0.004, 12.0, 4.0
# All of a kind's early rounds are learnt from, then every fourth, or every eighth plain one; on a CPU four of these at
# once, since a forward evicts Python from the caches: to learn from one round takes seven times as long as from another
# behind it.
_EARLY_ROUNDS, _LEARN_EVERY, _TOGETHER = 16, (8, 4, 4), 4  # the second by kind
# Rounds with the head between searches for the best tree; there are more after 1, 2, 4, 8 and 16.
_SEARCH_EVERY = 32


class Planner(Protocol):
    """Plans an engine's rounds."""

    match_rates: MatchRates

    def choose(self, requests: int, *, behind: Callable[[], int]) -> RoundPlan:
        """The plan of the next round. `behind`: positions the head has to catch up on first."""

    def pays(self, requests: int) -> bool:
        """True if prompts should run through the head because it is about to draft at this batch size."""

    def rereads(self, tokens: int, answer: int, requests: int) -> bool:
        """True if `tokens` of a prompt should run again for the head, which hasn't seen them.

        `answer`: the most tokens still to come. A head that starts after them drafts worse; at worst everything that
        speculation saves is lost.
        """

    def learn(self, done: FinishedRound) -> None:
        """Learn from a finished round."""

    def forget_head(self) -> None:
        """Forget the former head's acceptance: another head drafts now."""


class FixedPlanner:
    """Always plans the same tree, or PLAIN, whatever it costs."""

    def __init__(self, shape: TreeShape) -> None:
        self.match_rates = MatchRates()
        self._plan = RoundPlan(shape, self.match_rates)

    def choose(self, requests: int, *, behind: Callable[[], int] = lambda: 0) -> RoundPlan:
        """The fixed plan."""
        return self._plan

    def pays(self, requests: int) -> bool:
        """True if the tree isn't PLAIN."""
        return self._plan.kind is not Kind.PLAIN

    def rereads(self, tokens: int, answer: int, requests: int) -> bool:
        """See `pays`; no costs are known."""
        return self._plan.kind is not Kind.PLAIN

    def learn(self, done: FinishedRound) -> None:
        """Learn prompt lookup's match rates, and nothing else."""
        if done.drafted.proposal is not None:
            self.match_rates.observe(done.drafted.proposal, done.rows)

    def forget_head(self) -> None:
        """Nothing to forget."""


@dataclass
class _Way:
    """One kind of round within a group of batch sizes."""

    rounds: int = 0
    wait: int = 0  # rounds of other kinds before the next try
    due: int = 0  # the group's round in which it is tried next


@dataclass
class _Size:
    """The state of a group of batch sizes."""

    ways: tuple[_Way, ...] = field(default_factory=lambda: tuple(_Way() for _ in Kind))  # by kind
    rule: Kind = Kind.PLAIN
    rounds: int = 0
    quiet: int = 0  # until this round the rule is followed without deciding anything


@dataclass
class AdaptivePlanner:
    """Plans rounds from the outcomes of earlier ones. One per engine.

    `cost`: measured at start. `topk` bounds the trees' width. `confident`: rounds may read their own probabilities.
    `lookup`: the most tokens that prompt lookup proposes. `few`: by number of requests, the only trees
    to choose from, the smallest first; None: all.
    """

    cost: CostModel
    topk: int
    confident: bool
    lookup: int = 0
    few: Callable[[int], Sequence[TreeShape]] | None = None

    def __post_init__(self) -> None:
        self.match_rates = MatchRates()
        self.speeds = Speeds(self.cost, topk=self.topk, reach=max(MAX_DEPTH, self.lookup), few=self.few)
        asks = [Kind.LOOKUP] if self.confident and self.lookup else []
        self._kinds = [Kind.HEAD, *asks, Kind.PLAIN]
        self._sizes: dict[int, _Size] = {}
        self._try: tuple[_Size, Kind, int] | None = None  # the current try, with its rounds left
        self._head_rounds = 0
        self._drafted = 0  # of these, since the last search for the best trees
        self._credit = _FIRST_CREDIT  # in plain rounds
        self._host = _HostSeconds()
        self._unlearnt: list[tuple[FinishedRound, float, bool]] = []  # rounds to learn from together
        # By kind and batch size, until something is learnt.
        self._plans: dict[tuple[int, int], RoundPlan] = {}
        self._plain = RoundPlan(PLAIN, self.match_rates)

    def choose(self, requests: int, *, behind: Callable[[], int] = lambda: 0) -> RoundPlan:
        """The plan of the next round. `behind`: positions the head has to catch up on first."""
        size = self._size(requests)
        size.rounds += 1
        if size.rounds < size.quiet:
            return self._plan(size.rule, requests)
        self._follow(size, self._fastest(size, requests, behind))
        tried = self._tried(size, requests, behind)
        if tried is None:
            dues = [size.ways[kind].due for kind in self._kinds if kind != size.rule]
            size.quiet = min(size.rounds + _REVIEW, *dues)
            return self._plan(size.rule, requests)
        first = size.ways[tried].wait <= 2 * _FIRST_WAIT
        return self._plan(tried, requests, _HOPE if first else 1.0)

    def pays(self, requests: int) -> bool:
        """True if the head is the rule at this batch size, or about to be tried."""
        size = self._size(requests)
        return size.rule == Kind.HEAD or size.ways[Kind.HEAD].wait <= _FIRST_WAIT

    def rereads(self, tokens: int, answer: int, requests: int) -> bool:
        """True if `tokens` of a prompt are worth running again for the head (see `Planner`)."""
        target, speed = self.speeds.costs.model.target, self.speeds
        head, others = speed.gain(Kind.HEAD, requests), max(speed.gain(k, requests) for k in self._kinds[1:])
        if head * _ENTER[Kind.HEAD] < others:
            return False
        return answer * (1 / others - 1 / head) / speed.plain(requests) > target.at(tokens + 1) - target.at(1)

    def learn(self, done: FinishedRound) -> None:
        """Learn from a finished round, now or with later ones, or skip it (see `_LEARN_EVERY`)."""
        size, kind = self._size(len(done.rows)), done.kind
        seconds = done.seconds + self._host.of_round(kind, done.exposed)
        way = size.ways[kind]
        way.rounds += 1
        self._head_rounds += kind == Kind.HEAD
        self._drafted += kind == Kind.HEAD
        self._credit = min(self._credit + _TRY_SHARE, _MOST_CREDIT)
        usual = kind == size.rule and way.rounds > _EARLY_ROUNDS
        if usual and way.rounds % _LEARN_EVERY[kind]:
            return
        self._unlearnt.append((done, seconds, kind != size.rule))
        if not usual or not self.confident or len(self._unlearnt) >= _TOGETHER:
            for one in self._unlearnt:
                self._learn_from(*one)
            self._unlearnt.clear()

    def _learn_from(self, done: FinishedRound, seconds: float, tried: bool) -> None:
        """`tried`: its kind wasn't the rule."""
        size, kind, requests = self._size(len(done.rows)), done.kind, len(done.rows)
        drafted, speeds = done.drafted, self.speeds
        shape, levels, tokens, hopes = drafted.shape, len(drafted.levels), done.tokens, done.plan.hopes
        if drafted.proposal is not None:
            self.match_rates.observe(drafted.proposal, done.rows)
        if kind == Kind.HEAD:
            speeds.acceptance.observe(done.accepted, done.masses)
            speeds.acceptance.observe_levels(done.levels, MAX_DEPTH if self.confident else levels)
        took = max(seconds - done.catch_up, 1e-9)
        rounds = speeds.learn(kind, requests, shape, levels, drafted.rows, tokens, took, costs_only=hopes)
        if tried and kind != Kind.PLAIN and not hopes:
            rounds *= seconds / took
            self._credit -= max(rounds - tokens / requests / speeds.gain(size.rule, requests), 0.0)
        if self._drafted >= _SEARCH_EVERY or (
            kind == Kind.HEAD and size.ways[kind].rounds in (1, 2, 4, 8, 16)
        ):
            speeds.forget_promises()
            self._drafted = 0
        size.quiet = 0
        self._plans.clear()

    def forget_head(self) -> None:
        """See `Planner`; the costs of rounds stay, and the new head is tried soon."""
        self.speeds.forget_head()
        self._unlearnt.clear()
        for size in self._sizes.values():
            head = size.ways[Kind.HEAD]
            head.rounds = head.wait = head.due = size.quiet = 0
        self._try = None
        self._credit = max(self._credit, _FIRST_CREDIT)
        self._plans.clear()

    def _fastest(self, size: _Size, requests: int, behind: Callable[[], int]) -> Kind:
        """The best kind of round here; a new one has to beat the rule by a margin."""

        def worth(kind: Kind) -> float:
            gain = self.speeds.gain(kind, requests) * (_STAY if kind == size.rule else _ENTER)[kind]
            if kind == Kind.LOOKUP:
                return gain + _ASK / math.sqrt(requests) - _ASK_LESS
            catching_up = self._catch_up_rounds(requests, behind) if kind == Kind.HEAD else 0.0
            return gain / (1 + catching_up / _PAYBACK_ROUNDS)

        return max(self._kinds, key=worth)

    def _follow(self, size: _Size, rule: Kind) -> None:
        """Make this kind the rule; the former rule is tried again soon."""
        if rule != size.rule:
            left = size.ways[size.rule]
            left.wait = min(left.wait, _FIRST_WAIT)
            left.due = size.rounds + left.wait
            size.rule = rule

    def _tried(self, size: _Size, requests: int, behind: Callable[[], int]) -> Kind | None:
        """The kind that is due for a try; None: none."""
        if self._try is not None and self._try[0] is size:
            _, kind, left = self._try
            self._try = (size, kind, left - 1) if left > 1 else None
            return kind
        if size.rounds == 1:  # first of all the machine's pace
            return Kind.PLAIN
        for kind in self._kinds:
            way = size.ways[kind]
            if kind == size.rule or size.rounds < way.due:
                continue
            if not self._worth_a_try(size, kind, requests, behind):
                way.due = size.rounds + _ASK_AGAIN
                continue
            among_lookup = size.rule == Kind.LOOKUP and kind == Kind.PLAIN
            longest = _PLAIN_AMONG_LOOKUP if among_lookup else _LONGEST_WAIT[kind]
            way.wait = min(max(2 * way.wait, _FIRST_WAIT), longest)
            left = 0 if kind == Kind.PLAIN else min(_TRY_ROUNDS, -(-_TRY_REQUESTS // requests)) - 1
            gain = self.speeds.gain
            if kind == Kind.HEAD and gain(kind, requests) > _CLOSE * gain(size.rule, requests):
                left = _LONGER * (left + 1) - 1
            way.due = size.rounds + left + way.wait
            self._try = (size, kind, left) if left else None
            return kind
        return None

    def _worth_a_try(self, size: _Size, kind: Kind, requests: int, behind: Callable[[], int]) -> bool:
        """True if a trial of this kind would yield new information and the credit covers it."""
        way = size.ways[kind]
        settled = kind != Kind.HEAD and way.rounds > _KNOWN
        if settled and self.speeds.gain(size.rule, requests) > _FAR_AHEAD:
            return False
        if kind == Kind.PLAIN:
            return True
        catching_up = self._catch_up_rounds(requests, behind) if kind == Kind.HEAD else 0.0
        return catching_up <= (self._credit - 1.0 if way.wait else _LATEST)

    def _catch_up_rounds(self, requests: int, behind: Callable[[], int]) -> float:
        """Cost of the head's catching up, in plain rounds."""
        positions, speeds = behind(), self.speeds
        return speeds.costs.model.head.at(positions) * speeds.plain(requests) / requests if positions else 0.0

    def _plan(self, kind: Kind, requests: int, hope: float = 1.0) -> RoundPlan:
        """This kind's plan; `hope`: the factor by which a round may be cheaper than predicted."""
        if kind == Kind.PLAIN:
            return self._plain
        if hope > 1.0:
            return self._new_plan(kind, requests, hope)
        if (kind, requests) not in self._plans:
            self._plans[kind, requests] = self._new_plan(kind, requests, hope)
        return self._plans[kind, requests]

    def _new_plan(self, kind: Kind, requests: int, hope: float) -> RoundPlan:
        if kind == Kind.LOOKUP:
            return self._confident(kind, lookup_alone(self.lookup), requests, hope)
        if self._head_rounds < _FIRST_TREES:
            return self._first_tree(requests)
        return self._with_head(self.speeds.promise(requests).shape, requests, hope)

    def _first_tree(self, requests: int) -> RoundPlan:
        """A typical tree whatever its predicted cost: rows predicted to be too expensive would never be measured."""
        topk = min(self.topk, 4)
        max_rows = _FIRST_CPU_ROWS if self.confident else _FIRST_ROWS
        nodes = min(max(max_rows // requests, 2), 16 if topk > 1 else 5)
        shape = TreeShape(min(nodes - 1, 4), topk, nodes)
        if self.few is not None:
            few = [one for one in self.few(group_of(requests)) if one.topk <= topk]
            shape = max((one for one in few if one.nodes <= nodes), key=lambda one: one.nodes, default=shape)
        return RoundPlan(replace(shape, lookup=self.lookup), self.match_rates, hopes=True)

    def _with_head(self, shape: TreeShape, requests: int, hope: float = 1.0) -> RoundPlan:
        """A plan with the head; one that reads the tree's own probabilities needs only its width."""
        if self.confident:
            return self._confident(Kind.HEAD, deepest(shape.topk, self.lookup), requests, hope)
        return RoundPlan(replace(shape, lookup=self.lookup), self.match_rates)

    def _confident(self, kind: Kind, bound: TreeShape, requests: int, hope: float) -> RoundPlan:
        speeds = self.speeds
        gain = max(speeds.gain(one, requests) for one in self._kinds if one <= kind)
        extra = speeds.costs.extra(kind) if kind == Kind.HEAD else _LOOKUP_MARGIN
        cost = speeds.costs.hoped(requests) if self._head_rounds < _HOPING else speeds.costs.model
        price = gain * speeds.plain(requests) * extra / hope
        decided = terms(bound, requests, price, cost, speeds.acceptance)
        return RoundPlan(bound, self.match_rates, decided, hopes=hope > 1.0)

    def _size(self, requests: int) -> _Size:
        group = group_of(requests)
        if group not in self._sizes:
            self._sizes[group] = _Size()
        return self._sizes[group]


def terms(
    bound: TreeShape, requests: int, price: float, cost: CostModel, acceptance: AcceptanceModel
) -> Terms:
    """Terms of trees within `bound`; `price`: tokens that a second predicted by `cost` is worth."""
    curve = cost.target
    costs = [price * seconds for seconds in curve.seconds]
    step = price * cost.head.at(requests * bound.topk)
    return Terms(list(acceptance.calibration), list(acceptance.next_levels), curve.rows, costs, step)


class _HostSeconds:
    """The host's time per round of each kind: a moving average."""

    def __init__(self) -> None:
        self._average = [0.0 for _ in Kind]
        self._before: tuple[Kind, float] | None = None

    def of_round(self, kind: Kind, exposed: float) -> float:
        """The host's share of the round that just ended; `exposed`: the host's seconds since the engine's start.

        Time since the previous round counts towards that round: most of it is spent on delivering its tokens. The
        planner's own doesn't count, unless it is hidden behind a forward: a kind that is only tried is always learnt
        from, and would look slower by that.
        """
        if self._before is not None:
            earlier, before = self._before
            spent = max(exposed - before, 0.0)
            average = self._average[earlier] or spent  # nothing may have been exposed so far
            self._average[earlier] = average + _HOST_STEP * (min(spent, _HOST_LONGEST * average) - average)
        self._before = kind, exposed
        return self._average[kind]
