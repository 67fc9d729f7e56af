"""Extent of a request in a drafter's own KV, as far as the host knows: the part that the prefix cache may offer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DraftProgress:
    """A drafter's progress on one request. A drafter without KV of its own never falls behind."""

    start: int = 0  # first position in the drafter's KV
    written: int = 0  # positions from the first on that its KV holds without a gap
    follows: bool = False  # the running batch has all it needs to go on from there
    pending: int = 0  # positions it was behind after the last round the host knows of
    restarted: bool = False  # by then its KV had a gap

    def admit(self, prefix: int, *, seen: bool, speculate: bool) -> None:
        """The request begins with `prefix` positions that others left; `seen`: their drafters wrote them, too."""
        self.start = 0 if seen else prefix
        self.written = prefix if seen and speculate else 0

    def prefill(self, start: int, stop: int, *, read: bool, speculate: bool) -> None:
        """The target reads positions start .. stop - 1 of a prompt; `read`: the drafter does, too."""
        self.follows = speculate and self.written == start
        if read and self.follows:
            self.written = stop
        self.pending = 0 if read else stop - start

    def land(self, pending: int, *, restarted: bool) -> None:
        """A round's result says how far it is behind."""
        self.pending, self.restarted = pending, restarted

    def end(self, written: int) -> bool:
        """The request leaves the batch with so many positions written by the target; whether its KV has no gap."""
        complete = self.follows and not self.restarted
        if complete:
            self.written = written - self.pending
        return complete
