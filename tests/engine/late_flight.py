"""A flight whose results are taken one step late, and are spoilt after that.

So whatever the host composes meanwhile can't depend on a result that isn't there yet, and whoever looks at a result
later than allowed gets garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fledge.base.device import map_tensors
from fledge.engine.flight import Flight, Landed


class LateFlight(Flight):
    """What it returns are copies, as those that come from a GPU: they share no memory with what is carried."""

    def __init__(self, ahead: int) -> None:
        super().__init__(ahead)
        self.most = 0  # launches that were in flight at once
        self._taken: list[torch.Tensor] = []

    def _start(self, work: Callable[[], Any]) -> Callable[[], Landed]:
        for tensor in self._taken:
            tensor.fill_(torch.iinfo(tensor.dtype).min if not tensor.is_floating_point() else torch.nan)
        self._taken = []
        landed = super()._start(lambda: map_tensors(work(), torch.clone))
        self.most = max(self.most, len(self) + 1)

        def late() -> Landed:
            ready = landed()
            self._taken += _tensors(ready.value)
            return ready

        return late


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [] if value.dtype == torch.bool else [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, tuple | list) else []
