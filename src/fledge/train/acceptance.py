"""Acceptance of chain drafting, from the hits of the unroll.

The unroll drafts from every position at once, as serving would after the true tokens. So a served answer can be
replayed exactly: draft, accept the longest prefix of hits, take the bonus token, jump, draft again.

    row         0     1     2     3     4     5          row 0 predicts the answer's first token, which the prompt's
    accepted    -     2     0     1     0     0          forward yields; drafting starts at row 1
    rounds            |-----------^     |--^  ^          round 1 emits 3 tokens (2 + bonus), round 2 one ...
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from fledge.train.batches import TrainBatch


@dataclass(frozen=True, slots=True)  # an evaluation keeps tens of thousands
class DraftRound:
    """One draft and its verification."""

    sample: int  # the conversation's number in its batch
    position: int  # committed length before drafting
    accepted: int  # drafted tokens accepted
    emitted: int  # accepted plus the bonus token, unless the answer ended before it
    missed: bool = False  # the token after the accepted ones isn't in the draft vocabulary


@dataclass(frozen=True)
class Acceptance:
    """Tokens per verify, and acceptance by depth, over a set of rounds."""

    tau: float  # emitted tokens per round, bonus token included; 1.0 = speculation useless
    by_depth: list[float]  # share of rounds that accept at least 1, 2, ... drafted tokens
    rounds: int
    tokens: int
    misses: float = 0.0  # share of rounds that ended at a token outside the draft vocabulary

    @classmethod
    def of(cls, rounds: Iterable[DraftRound], depth: int) -> Acceptance:
        """Aggregate rounds that drafted `depth` tokens each."""
        tally = Tally(depth)
        tally.add(rounds)
        return tally.acceptance()


class Tally:
    """Aggregates rounds that drafted `depth` tokens each, without storing them."""

    def __init__(self, depth: int) -> None:
        self._accepted = [0] * (depth + 1)  # rounds by drafted tokens accepted
        self._tokens = self._missed = 0

    def add(self, rounds: Iterable[DraftRound]) -> None:
        """Count more rounds."""
        for r in rounds:
            self._accepted[r.accepted] += 1
            self._tokens += r.emitted
            self._missed += r.missed

    def merge(self, other: Tally) -> None:
        """Count the other's rounds as well."""
        self._accepted = [a + b for a, b in zip(self._accepted, other._accepted, strict=True)]
        self._tokens += other._tokens
        self._missed += other._missed

    def acceptance(self) -> Acceptance:
        """Acceptance over all rounds added so far."""
        count = sum(self._accepted)
        divisor = max(1, count)
        shares = [sum(self._accepted[d:]) / divisor for d in range(1, len(self._accepted))]
        return Acceptance(self._tokens / divisor, shares, count, self._tokens, self._missed / divisor)


def replay(hits: Tensor, batch: TrainBatch, outside: Tensor | None = None) -> list[DraftRound]:
    """The rounds of a batch's answers.

    Args:
        hits: [steps, S] bool, whether the row's proposal at a step is the true token.
        batch: the batch that was unrolled.
        outside: [V] bool, tokens that aren't in the draft vocabulary; None: misses aren't counted.
    """
    depth = hits.shape[0]
    unknown = [False] * len(batch.labels) if outside is None else outside[batch.labels.cpu()].tolist()
    accepted: Sequence[int] = hits.long().cumprod(0).sum(0).tolist()
    lengths: Sequence[int] = batch.rows_left.tolist()
    positions: Sequence[int] = batch.positions[batch.rows].tolist()
    rounds = []
    for start, sample in batch.answers:
        end = start + lengths[start]
        row = start + 1
        while row < end:
            taken = min(accepted[row], end - row)
            emitted = min(taken + 1, end - row)
            missed = taken < min(end - row, depth) and unknown[row + taken]
            rounds.append(DraftRound(sample, positions[row] + 1, taken, emitted, missed))
            row += emitted
    return rounds
