"""What rounds tell the planner.

On a CPU a forward pushes Python out of the caches, and learning from a round then takes 0.3 ms, of the 11 of one
request's round; from several rounds in one go it takes a fraction of that. So while nothing is about to change, because
speculation pays, or doesn't, and what that costs is known, lessons are put off until there are some. Of a round that
is an exception, to find out whether this still holds, the planner hears at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fledge.engine.phases import HostSeconds
from fledge.engine.planner import Planner
from fledge.engine.result import RoundResult

_TOGETHER = 8  # rounds


class Lesson(NamedTuple):
    """What came of a round of B requests, S of which speculate."""

    result: RoundResult
    rows: Sequence[Sequence[int]]  # [B], how many tokens each request emitted, then the tokens
    accepted: Sequence[int]  # [S], nodes below the root
    seconds: float  # on the lane
    asked: bool  # lookup was, without the head


class Lessons:
    """Those of one engine."""

    def __init__(self, planner: Planner, *, on_cpu: bool, patient: bool) -> None:
        """`patient`: lessons may be put off."""
        self._planner, self._on_cpu, self._patient = planner, on_cpu, patient
        self._host = HostSeconds()
        self._waiting: list[Lesson] = []

    def take(self, lesson: Lesson, exposed: float) -> None:
        """A round is done; the host has kept forwards waiting for `exposed` seconds so far."""
        drafted = lesson.result.drafted is not None
        seconds = lesson.seconds + self._host.of_round(exposed, drafted=drafted)
        self._waiting.append(lesson._replace(seconds=seconds))
        head = drafted and not lesson.asked
        patient = self._patient and self._planner.is_settled(len(lesson.rows), drafted=head)
        if not patient or len(self._waiting) >= _TOGETHER:
            self.learn()

    def learn(self) -> None:
        """Let the planner hear of all rounds that it hasn't heard of."""
        waiting, self._waiting = self._waiting, []
        for lesson in waiting:
            self._learn(lesson)

    def _learn(self, lesson: Lesson) -> None:
        """Before a round the head may have had to catch up."""
        result, rows, accepted, seconds, asked = lesson
        drafted, planner, late, requests = result.drafted, self._planner, result.catch_up, len(rows)
        shape = None if drafted is None else drafted.shape
        levels: list[Tensor] = []
        if drafted is not None and drafted.proposal is not None:
            planner.match_rates.observe(drafted.proposal, rows)
        if not planner.learns:
            planner.count(shape, requests, requests + sum(accepted), seconds - late)
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
