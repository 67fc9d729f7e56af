"""A lane that runs nothing until the host waits for it, and spoils what the host has taken.

So whatever the host composes meanwhile can't depend on a result that isn't there yet, and whoever looks at a result
later than allowed, or shares memory with it, gets garbage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch

from fledge.engine.lane import Entry, Lane


class LazyLane(Lane):
    def __init__(self) -> None:
        super().__init__()
        self.most = 0  # works that were in flight at once
        self._queue: deque[tuple[_Late, Callable[[], Any]]] = deque()
        self._taken: list[torch.Tensor] = []

    def _start(self, run: Callable[[], Any]) -> Entry[Any]:
        for tensor in self._taken:
            tensor.fill_(torch.iinfo(tensor.dtype).min if not tensor.is_floating_point() else torch.nan)
        self._taken = []
        future = _Late(self)
        self._queue.append((future, run))
        self.most = max(self.most, len(self._queue))
        return Entry(partial(self._arrive, future))

    def run(self, until: _Late | None = None) -> None:
        """Run what is queued, in order, up to a work."""
        while self._queue and not (until is not None and until.done()):
            future, work = self._queue.popleft()
            try:
                future.set_result(work())
            except Exception as failure:
                future.set_exception(failure)

    def _arrive(self, future: _Late) -> Any:
        ran = future.result()
        self._taken += _tensors(ran.value)
        return ran

    def _finish(self) -> None:
        self.run()


class _Late(Future[Any]):
    def __init__(self, lane: LazyLane) -> None:
        super().__init__()
        self._lane = lane

    def result(self, timeout: float | None = None) -> Any:
        self._lane.run(until=self)
        return super().result(0)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [] if value.dtype == torch.bool else [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, tuple | list) else []
