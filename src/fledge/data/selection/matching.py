"""Matching prompts to traffic: importance resampling on hashed n-grams (DSIR, arXiv 2302.03169).

    traffic ──► p(n-gram)          weight of a prompt x = prod over its n-grams of p / q
    pool    ──► q(n-gram)          drawn without replacement: the largest log weight + Gumbel noise

A prompt is a bag of hashed unigrams and bigrams. Distances between two sets of prompts are Jensen-Shannon distances of
their n-gram distributions: 0 is the same, 1 shares nothing. Of the traffic, only hash counts are stored.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fledge.data.filters import words
from fledge.data.seeds import unit_interval

BUCKETS = 10_000  # as in the paper
# N-grams of the pool's distribution added to the traffic's as smoothing: a small sample is less reliable
_PRIOR = 1000.0
_LONGEST = 400  # words of a prompt that are used

Counts = NDArray[np.float64]  # [BUCKETS]


def features(texts: Sequence[str]) -> NDArray[np.int64]:
    """Buckets of a prompt's unigrams and bigrams, one per occurrence."""
    text_words = words("\n".join(texts))[:_LONGEST]
    grams = [*text_words, *map(" ".join, itertools.pairwise(text_words))]
    return np.fromiter((zlib.crc32(gram.encode()) % BUCKETS for gram in grams), np.int64, len(grams))


class NgramCounts:
    """Count of each bucket in a set of prompts."""

    def __init__(self) -> None:
        self.counts: Counts = np.zeros(BUCKETS)
        self.prompts = 0

    def add(self, buckets: NDArray[np.int64]) -> None:
        """Count one prompt's features."""
        np.add.at(self.counts, buckets, 1.0)
        self.prompts += 1

    @classmethod
    def of(cls, prompts: Iterable[Sequence[str]]) -> NgramCounts:
        """Counts over all prompts' texts."""
        counts = cls()
        for texts in prompts:
            counts.add(features(texts))
        return counts


class TrafficModel:
    """The log weight of a prompt for one workload of the traffic."""

    def __init__(self, traffic: NgramCounts, pool: NgramCounts) -> None:
        # Dirichlet smoothing with the pool as prior. Buckets absent from the pool are never queried.
        q = pool.counts / max(pool.counts.sum(), 1.0)
        p = (traffic.counts + _PRIOR * q) / (traffic.counts.sum() + _PRIOR)
        self._log_ratio = np.log(p, where=q > 0, out=np.zeros(BUCKETS)) - np.log(
            q, where=q > 0, out=np.zeros(BUCKETS)
        )

    def log_weight(self, buckets: NDArray[np.int64]) -> float:
        """Sum over the prompt's n-grams of log p - log q."""
        return float(self._log_ratio[buckets].sum())


def distance(one: NgramCounts, other: NgramCounts) -> float:
    """Jensen-Shannon distance in [0, 1] (base 2)."""
    p, q = one.counts / max(one.counts.sum(), 1.0), other.counts / max(other.counts.sum(), 1.0)
    middle = (p + q) / 2
    return math.sqrt(max(0.0, (_kl(p, middle) + _kl(q, middle)) / 2))


def gumbel(seed: int, prompt_id: str) -> float:
    """Noise that turns "the largest k" into sampling without replacement; the same for the same prompt."""
    coin = unit_interval(seed, "gumbel", prompt_id)
    return -math.log(-math.log(min(max(coin, 1e-300), 1 - 1e-16)))


def _kl(p: Counts, q: Counts) -> float:
    support = p > 0
    return float((p[support] * np.log2(p[support] / q[support])).sum())
