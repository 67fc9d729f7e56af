"""A running batch whose rounds are recorded for more rows than there are requests (`graphs.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from fledge.engine.batch import BatchSizes, RowState, RunningBatch, Speculating
from fledge.target.batch import PADDING_PAGE


class SettledState(RowState, Protocol):
    """`RowState` that recorded rounds read, too."""

    def settle(self, requests: int, rows: int) -> None:
        """A recorded round of `rows` rows runs next; those from `requests` on are padding."""


class PaddedBatch(RunningBatch):
    """`RunningBatch`, and what recorded rounds need of it."""

    def __init__(self, sizes: BatchSizes, device: torch.device, states: Sequence[SettledState]) -> None:
        super().__init__(sizes, device, states)
        self._padded_states = states
        self._settled: Speculating | None = None  # what the mask of recorded rounds says

    @contextmanager
    def padded(self, rows: int) -> Iterator[None]:
        """Context in which the first `rows` rows run, used or not, to record a round."""
        before = self.size, self._speculating
        self.size, self._speculating = rows, Speculating(True, self._mask[:rows], None)
        try:
            yield
        finally:
            self.size, self._speculating = before

    def settle(self, rows: int) -> None:
        """A recorded round of `rows` rows runs next: update the values it reads.

        Rows after the running requests are padding. They have length 0 and no page but the unowned one, so
        whatever a round does for them, no request's keys and values are read or written.
        """
        speculating = self.speculating()
        if speculating is not self._settled:
            self._settled = speculating
            if speculating.mask is None:
                self._mask[: self.size].fill_(True)
        if rows > self.size:
            self._state.length[self.size : rows].zero_()  # a round moves it on
            self._state.page_table[self.size : rows].fill_(PADDING_PAGE)
        for one in self._padded_states:
            one.settle(self.size, rows)
