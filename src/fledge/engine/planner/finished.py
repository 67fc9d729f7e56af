"""A finished round, as the planner sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.engine.planner.plan import Kind, RoundPlan
from fledge.engine.rounds.result import Drafts


class FinishedRound(NamedTuple):
    """The outcome of a round of B requests."""

    plan: RoundPlan
    drafted: Drafts
    speculating: list[int] | None  # which of the B speculate; None: all
    rows: Sequence[Sequence[int]]  # [B], the number of tokens each request emitted, then the tokens
    accepted: Sequence[int]  # accepted nodes below the root, for each request that speculates
    seconds: float
    catch_up: float  # of these, the head's catching up on earlier rounds
    exposed: float  # seconds that the host, but for the planner, has kept forwards waiting, since the engine's start

    @property
    def kind(self) -> Kind:
        """The kind that was planned."""
        return self.plan.kind

    @property
    def tokens(self) -> int:
        """Tokens it emitted."""
        return len(self.rows) + sum(self.accepted)

    @property
    def masses(self) -> list[float]:
        """Summed probabilities of the speculating requests' nodes by depth, 1 first."""
        tree, reach = self.drafted.tree, self.drafted.shape.reach
        depths, log_probs = self._own(tree.depths), self._own(tree.log_probs)
        sums = torch.bincount(depths.flatten(), log_probs.exp().flatten().double(), reach + 1)
        masses: list[float] = sums[1:].tolist()
        return masses

    @property
    def levels(self) -> list[Tensor]:
        """Log probabilities of the speculating requests' candidates by drafted level."""
        return [self._own(level) for level in self.drafted.levels]

    def _own(self, rows: Tensor) -> Tensor:
        return rows if self.speculating is None else rows[self.speculating]
