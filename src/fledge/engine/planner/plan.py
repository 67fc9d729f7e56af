"""One round's plan: how large its trees may get, and what is decided while they grow.

What takes t seconds has to bring more than mu * t tokens. With

    price           mu * extra: tokens that a predicted second is worth, as rounds take `extra` times the predicted
    c[d]            calibration of the head's probabilities at depth d
    share[d]        of level d's probability, what level d + 1 is expected to keep        (both: `acceptance.py`)

level d + 1 is drafted while the next tokens that only the head could name are worth more than the step that names them;
each request contributes its expected gain minus the cost of one more verify row, if positive:

    sum over requests of  max(open mass * c[d] * share[d] - price * seconds of a row, 0)  >  price * seconds of the step

and the candidates verified are the n most probable of all requests' together, for the n that makes this largest:

    sum of the n best candidates' calibrated probabilities  -  price * seconds of a verify of B + n rows

Both are decided in C++ (native/draft.cpp), where reading a probability is free; other backends grow fixed shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from fledge.engine.drafters.proposal import MatchRates
from fledge.engine.shapes import PLAIN, TreeShape


class Kind(IntEnum):
    """The kinds of round."""

    PLAIN = 0
    LOOKUP = 1  # drafts come from prompt lookup alone
    HEAD = 2


class Terms(NamedTuple):
    """Numbers that a plan decides by. Costs are in tokens: price * seconds."""

    calibration: list[float]  # by depth
    next_levels: list[float]  # share by depth
    rows: tuple[int, ...]  # of a verify,
    costs: list[float]  # and what so many cost; linear between
    step: float  # what a draft step costs


@dataclass(frozen=True)
class RoundPlan:
    """Limits of a round's trees, and the terms for decisions made while they grow."""

    bound: TreeShape
    match_rates: MatchRates = field(default_factory=MatchRates)  # what proposals of prompt lookup are worth
    terms: Terms | None = None  # to decide by the tree's own probabilities; None: it grows to `bound`
    hopes: bool = False  # optimistic: planned with discounted costs; set only for a first trial

    @cached_property
    def kind(self) -> Kind:
        """Plain decode is a tree of one node; prompt lookup alone, a tree without drafted levels."""
        return Kind.HEAD if self.bound.depth else Kind.LOOKUP if self.bound != PLAIN else Kind.PLAIN

    @property
    def drafts(self) -> bool:
        """True if the drafter runs."""
        return self.bound.depth > 0
