"""Rounds of the running batch: one kind of `Round`, and the drafter's bookkeeping between rounds.

torch.py defines a `Round`, native.py is the same in one C++ call, graphs.py replays recordings; build.py chooses.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.drafter import Drafter
from fledge.engine.logprobs import PathLogprobs
from fledge.engine.phases import PhaseClock
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.rounds.result import Drafts, RoundResult


class Outcome(NamedTuple):
    """A round's results on the device, as in `RoundResult`."""

    emitted: Tensor  # [B, 1 + D + 1]
    logprobs: PathLogprobs | None
    drafted: Drafts
    path: Tensor
    states: Tensor | None = None


class Round(Protocol):
    """The part of a round that runs on the device."""

    def run(self, plan: RoundPlan) -> Outcome:
        """One round of the running requests."""

    def passed(self, done: Outcome) -> list[int]:
        """Positions of each request [B] that went by, at most, if the drafter didn't follow. Reads no device value."""


class Rounds:
    """Rounds of any kind."""

    def __init__(
        self, round_: Round, batch: RunningBatch, drafter: Drafter | None, clock: PhaseClock
    ) -> None:
        self.round, self.batch, self.drafter, self.clock = round_, batch, drafter, clock

    def decode(self, plan: RoundPlan) -> RoundResult:
        """One round of the running requests, after the drafter has read what it left out, if it is to draft."""
        batch, drafter = self.batch, self.drafter
        pending, restarted, late = [0] * batch.size, [False] * batch.size, 0.0
        self.clock.start()
        if drafter is not None and plan.drafts:
            drafter.catch_up(batch)
            late = self.clock.lap("extend")
        done = self.round.run(plan)
        if drafter is not None:
            if not plan.drafts and batch.speculating().some:
                drafter.fell_behind(self.round.passed(done))
            pending, restarted = drafter.behind(batch.size)
        return RoundResult(
            done.emitted, done.logprobs, done.drafted, done.path, pending, restarted, late, done.states
        )
