"""Whose turn it is on the cores: the engine's, or the learning process's.

    requests run    step step step ~~~~~ step step step ~~~~~        ~ a slice of training, which steps wait for
    pause                           step ~~~~~~~~~~~~~~~~~~~~~~ step   from 0.05 s after the last step to the next one

Side by side they would cost each other far more: the threads of both meet at barriers hundreds of times a second, and
a thread without a core holds up all others. So the process is stopped (SIGSTOP) whenever it isn't its turn. While
requests run, each second of steps earns training share / (1 - share) seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SLICE_S = 0.03  # seconds: about three steps of a small model on two cores
_QUIET_S = 0.05  # without a step, after which training goes on
_LONGEST_STEP_S = 1.0  # that counts as serving; more is an idle engine
_MOST_SLICES = 4  # earned ahead, as during a long prefill


class Turns:
    """Stops and continues a process. Thread-safe."""

    def __init__(self, share: float, move: Callable[[bool], None]) -> None:
        """`share` of the time for training while requests run; `move(True)` continues the process, False stops it."""
        self._earns, self._move = share / (1 - share), move
        self._lock = threading.Lock()
        self._training = False
        self._running = True
        self._since = time.monotonic()  # it runs, if it does
        self._granted = self._earned = 0.0
        self._last = -1e9  # when the last step was let go

    @property
    def granted(self) -> float:
        """Seconds that training has been let run."""
        return self._granted + (time.monotonic() - self._since if self._training and self._running else 0.0)

    @property
    def serving(self) -> bool:
        """True if steps were taken within the last second."""
        return time.monotonic() - self._last < 1.0

    def training(self, wanted: bool) -> None:
        """The process computes from now on, or waits for answers, which takes no core from anyone."""
        with self._lock:
            self._count()
            self._training = wanted
            self._set(not wanted or not self.serving)

    def before_step(self) -> None:
        """Called by the engine's thread: ends training's turn, after the slice that it has earned."""
        with self._lock:
            now = time.monotonic()
            if self._training:
                between = 0.0 if self._running else min(now - self._last, _LONGEST_STEP_S)
                self._earned = min(self._earned + between * self._earns, _MOST_SLICES * _SLICE_S)
                if self._earned >= _SLICE_S:
                    self._earned -= _SLICE_S
                    self._set(True)
                    time.sleep(_SLICE_S)
                self._set(False)
            self._last = time.monotonic()

    def look(self, busy: bool) -> None:
        """Called again and again: continues training once no step has been taken for a while."""
        with self._lock:
            if self._training and not busy and time.monotonic() - self._last > _QUIET_S:
                self._set(True)

    def end(self) -> None:
        """The process may go on from now on, whatever it does."""
        self.training(False)

    def _set(self, running: bool) -> None:
        if running != self._running:
            self._count()
            self._running = running
            self._move(running)

    def _count(self) -> None:
        now = time.monotonic()
        if self._training and self._running:
            self._granted += now - self._since
        self._since = now
