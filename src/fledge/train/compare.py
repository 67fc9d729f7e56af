"""Two heads on the same held-out conversations: the difference in tau and its confidence interval.

Both draft from the same stored features, so the comparison is paired: conversations are resampled with replacement
(bootstrap), and the interval holds the middle 95 % of the differences. With few conversations that is too narrow, so it
is widened by the ratio of Student's t to the normal distribution (Hesterberg 2015, arXiv 1411.5279).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fledge.data.options import Progress, silent
from fledge.features import FeatureStore
from fledge.heads import Head
from fledge.target import Target
from fledge.train.evaluation import HeldoutRounds, heldout_rounds
from fledge.train.options import EvaluateOptions

_RESAMPLES = 2000  # bootstrap samples
_FEWEST = 5  # conversations; fewer may all favour the same head by chance


@dataclass(frozen=True)
class TauDifference:
    """Chain tau of two heads on some conversations, and the interval of their difference."""

    name: str  # a category, or "all"
    conversations: int
    tau: tuple[float, float]
    low: float  # of tau[1] - tau[0], 95 % interval; unbounded with too few conversations
    high: float

    @property
    def certain(self) -> bool:
        """True if the interval excludes zero."""
        return self.low > 0 or self.high < 0


def compare_heads(
    target: Target,
    heads: Sequence[Head],
    features_url: str,
    options: EvaluateOptions,
    progress: Progress = silent,
) -> list[TauDifference]:
    """The second head minus the first: over all held-out conversations, then by category."""
    store = FeatureStore(features_url)
    measured = [heldout_rounds(target, head, store, options, progress) for head in heads]
    infos = measured[0].conversations
    both = torch.stack([round_counts(one) for one in measured])  # [2, conversations, 2]
    categories = sorted({info.category for info in infos})
    groups = {"all": list(range(len(infos)))}
    if len(categories) > 1:
        groups |= {name: [i for i, info in enumerate(infos) if info.category == name] for name in categories}
    return [tau_difference(name, both[:, chosen]) for name, chosen in groups.items()]


def round_counts(measured: HeldoutRounds) -> Tensor:
    """Emitted tokens and rounds of each conversation, [conversations, 2]."""
    places = {(info.shard, info.index): i for i, info in enumerate(measured.conversations)}
    counts = torch.zeros(len(places), 2, dtype=torch.float64)
    for r, info in measured.rounds:
        counts[places[info.shard, info.index]] += torch.tensor([r.emitted, 1.0], dtype=torch.float64)
    return counts


def tau_difference(name: str, counts: Tensor) -> TauDifference:
    """The second head's tau minus the first's, from their `round_counts` [2, n, 2] on the same n conversations."""
    n = counts.shape[1]
    first, second = (float(part[:, 0].sum() / part[:, 1].sum().clamp(min=1)) for part in counts)
    if n < _FEWEST:
        return TauDifference(name, n, (first, second), -math.inf, math.inf)
    drawn = torch.randint(n, (_RESAMPLES, n), generator=torch.Generator().manual_seed(0))
    sums = counts[:, drawn].sum(2)  # [2, resamples, 2]
    tau = sums[..., 0] / sums[..., 1].clamp(min=1)
    middle = (tau[1] - tau[0]).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    gain = second - first
    low, high = (gain + _widening(n) * (middle - gain)).tolist()
    return TauDifference(name, n, (first, second), low, high)


def _widening(n: int) -> float:
    """Ratio of Student's 95 % interval for n values to the normal one with their uncorrected deviation."""
    z, free = 1.96, n - 1
    student = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return student / z * math.sqrt(n / free)
