"""What rounds tell the planner, and when.

On a CPU a forward pushes Python out of the caches, and learning from a round then takes 0.3 ms, of the 11 of one
request's round; from several rounds in one go it takes a fraction of that. So while nothing is about to change, because
speculation pays, or doesn't, and what that costs is known, the planner hears of several rounds together, and learns
from the last of them. Of a round that is an exception, to find out whether this still holds, it hears at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fledge.engine.planner import Planner
from fledge.engine.result import RoundResult
from fledge.engine.shapes import TreeShape

_TOGETHER = 8  # rounds that the planner hears of together,
_LEARNT = 2  # and how many of them, the last, it learns from
_HOST_STEP = 0.1  # weight of a new measurement of the host's part in a round,
_HOST_LONGEST = 4.0  # and how many times what is known it may be at most


class FinishedRound(NamedTuple):
    """What came of a round of B requests, S of which speculate."""

    result: RoundResult
    rows: Sequence[Sequence[int]]  # [B], how many tokens each request emitted, then the tokens
    accepted: Sequence[int]  # [S], nodes below the root
    seconds: float  # on the lane
    asked: bool  # a round without the head that asked prompt lookup

    @property
    def shape(self) -> TreeShape | None:
        """The verified trees'; None: a plain round."""
        return None if self.result.drafted is None else self.result.drafted.shape

    @property
    def tokens(self) -> int:
        """That it brought."""
        return len(self.rows) + sum(self.accepted)


class Feedback:
    """Hands finished rounds on to one engine's planner."""

    def __init__(self, planner: Planner, *, on_cpu: bool, patient: bool) -> None:
        """`patient`: learning from a round may be put off."""
        self._planner, self._on_cpu, self._patient = planner, on_cpu, patient
        self._host = HostSeconds()
        self._waiting: list[FinishedRound] = []

    def take(self, done: FinishedRound, exposed: float) -> None:
        """A round is done; the host has kept forwards waiting for `exposed` seconds so far."""
        drafted = done.result.drafted is not None
        seconds = done.seconds + self._host.of_round(exposed, drafted=drafted)
        self._waiting.append(done._replace(seconds=seconds))
        head = drafted and not done.asked
        patient = self._patient and self._planner.is_settled(len(done.rows), drafted=head)
        if not patient or len(self._waiting) >= _TOGETHER:
            self.learn()

    def learn(self) -> None:
        """Let the planner hear of all rounds that it hasn't heard of."""
        waiting, self._waiting = self._waiting, []
        alike = waiting[:-_LEARNT] if self._planner.learns else []
        for done in alike:
            late = done.result.catch_up
            self._planner.pass_over(
                done.shape, len(done.rows), done.tokens, done.seconds - late, catch_up=late
            )
        for done in waiting[len(alike) :]:
            self._learn(done)

    def _learn(self, done: FinishedRound) -> None:
        result, rows, accepted, seconds, asked = done
        drafted, planner, late, requests = result.drafted, self._planner, result.catch_up, len(rows)
        shape = done.shape
        levels: list[Tensor] = []
        if drafted is not None and drafted.proposal is not None:
            planner.match_rates.observe(drafted.proposal, rows)
        if not planner.learns:
            planner.count(shape, requests, done.tokens, seconds - late)
            return
        if drafted is None:
            planner.observe(None, requests, seconds, [], asked=asked)
        else:
            levels = [level.cpu() for level in drafted.levels]
            masses = _depth_masses(drafted.depths, drafted.log_probs, drafted.shape.reach)
            planner.observe(
                shape,
                requests,
                seconds - late,
                accepted,
                masses,
                levels,
                catch_up=late,
                rows=drafted.rows,
                asked=asked,
            )
        if self._on_cpu:  # elsewhere the clock sees launches, not work
            verified = drafted.rows if drafted else requests
            planner.time(requests, shape, len(levels), verified, result.draft, result.verify)


def _depth_masses(depths: Tensor, log_probs: Tensor, deepest: int) -> list[float]:
    """Summed probabilities [deepest] of the nodes [B, N] by depth, depth 1 first."""
    sums = [0.0] * (deepest + 1)
    for depth, probability in zip(depths.flatten().tolist(), log_probs.exp().flatten().tolist(), strict=True):
        sums[depth] += probability
    return sums[1:]


class HostSeconds:
    """What the host adds to a round: means over the latest rounds with drafts, and over the latest plain ones."""

    def __init__(self) -> None:
        self._known: dict[bool, float] = {}
        self._before: tuple[bool, float] | None = None

    def of_round(self, exposed: float, *, drafted: bool) -> float:
        """What it adds to the round that just ended; by now the host has kept forwards waiting for `exposed` seconds.

        What was added since the round before counts as that one's: learning from it is most of what the host does.
        """
        if self._before is not None:
            kind, earlier = self._before
            spent = exposed - earlier
            known = self._known.get(kind) or spent  # nothing may have been exposed so far
            self._known[kind] = known + _HOST_STEP * (min(spent, _HOST_LONGEST * known) - known)
        self._before = drafted, exposed
        return self._known.get(drafted, 0.0)
