"""Acceptance in serving, by version: whether a new head does worse than the one before it.

Tokens of drafted rounds over drafted rounds, a ratio of sums over requests; its deviation is that of the residuals
x - ratio * n (the delta method), since a request's rounds belong together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

_KEPT, _FEWEST = 400, 20  # requests of each version
_Z = 1.96  # of a 95 % interval
_MARGIN = 0.98  # the planner drafts other trees with another head: less than this is no fall


class Tau(NamedTuple):
    """A mean and its standard error."""

    value: float
    error: float


class LiveTau:
    """Acceptance of the serving version and the one before."""

    def __init__(self) -> None:
        self._now: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._before: list[tuple[int, int]] = []

    def add(self, accepted: int, rounds: int) -> None:
        """A request has ended."""
        if rounds:
            self._now.append((accepted + rounds, rounds))

    def swapped(self, *, back: bool = False) -> None:
        """Record that another version serves; `back`: the one before, so that there is none to compare it with."""
        self._before = [] if back else list(self._now)
        self._now.clear()

    def tau(self) -> float | None:
        """Tau of the serving version; None without drafted rounds."""
        return _ratio(list(self._now)).value if self._now else None

    def fell(self) -> bool:
        """True if the serving version is significantly worse than the one before."""
        if min(len(self._now), len(self._before)) < _FEWEST:
            return False
        now, before = _ratio(list(self._now)), _ratio(self._before)
        return now.value + _Z * math.hypot(now.error, before.error) < _MARGIN * before.value


def _ratio(pairs: Sequence[tuple[int, int]]) -> Tau:
    tokens, rounds = sum(x for x, _ in pairs), sum(n for _, n in pairs)
    value, count = tokens / rounds, len(pairs)
    squares = sum((x - value * n) ** 2 for x, n in pairs)
    return Tau(value, math.sqrt(squares * count / max(count - 1, 1)) / rounds)
