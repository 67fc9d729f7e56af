"""Where an engine's time goes, as the host sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Literal, get_args

Phase = Literal["prefill", "draft", "verify", "accept", "extend"]


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds per phase: the first six make up the time steps take.

    `host` is what the host adds to a step: scheduling, results, bookkeeping, while no forward runs (in
    "speed-up = tau * t_plain / (...)" it is t_host_exposed). `hidden` is what it does while one runs (see `flight.py`).
    """

    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    extend: float = 0.0
    host: float = 0.0
    hidden: float = 0.0

    def since(self, earlier: PhaseSeconds) -> PhaseSeconds:
        """Seconds added after `earlier` was read."""
        return PhaseSeconds(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))


class PhaseClock:
    """Adds the time since the last lap to a phase."""

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self.restart()
        self.start()

    def restart(self) -> None:
        """Forget all seconds."""
        self._seconds = dict.fromkeys(get_args(Phase), 0.0)

    def start(self) -> None:
        """Begin a launch."""
        self._mark = time.perf_counter()

    def lap(self, phase: Phase) -> float:
        """End `phase`; its seconds since the last lap."""
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        self._seconds[phase] += seconds
        return seconds

    def add(self, phase: Phase, seconds: float) -> None:
        """Attribute `seconds` of the time since the last lap to a phase; the next lap gets the rest."""
        self._seconds[phase] += seconds
        self._mark += seconds

    def read(self) -> PhaseSeconds:
        """All seconds so far."""
        return PhaseSeconds(**self._seconds)
