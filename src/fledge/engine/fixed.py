"""The planner of an engine with a fixed tree, or without a head."""

from __future__ import annotations

from collections.abc import Callable

from fledge.engine.cost import CostModel
from fledge.engine.planner import Planner
from fledge.engine.plans import RoundPlan
from fledge.engine.shapes import PLAIN, TreeShape


class FixedPlanner(Planner):
    """Always the same tree, whatever it costs; or never one."""

    learns = False

    def __init__(self, cost: CostModel, shape: TreeShape) -> None:
        super().__init__(cost, topk=shape.topk, confident=False)
        self._fixed = None if shape == PLAIN else RoundPlan(shape, self.match_rates)

    def choose(self, requests: int, *, behind: Callable[[], int] = lambda: 0) -> RoundPlan | None:
        """The fixed plan."""
        return self._fixed

    def pays(self, requests: int) -> bool:
        """Whether the tree isn't PLAIN."""
        return self._fixed is not None

    def is_settled(self, requests: int, *, drafted: bool) -> bool:
        """Always: nothing is learnt."""
        return True

    def rereads(self, tokens: int, answer: int, requests: int) -> bool:
        """As `pays`: nothing is known of costs."""
        return self.pays(requests)
