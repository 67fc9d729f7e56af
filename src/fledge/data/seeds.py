"""Seeds and ids by hashing: what happens to one prompt depends on that prompt, never on others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def derive_seed(*parts: str | int) -> int:
    """A 63-bit seed for (stage seed, purpose, index, ...)."""
    return hash64(*parts) >> 1


def unit_interval(*parts: str | int) -> float:
    """A pseudorandom number in [0, 1), the same for the same parts."""
    return (hash64(*parts) >> 11) / (1 << 53)


def pick(weights: Mapping[T, float], draw: float) -> T:
    """The key whose share of [0, 1), proportional to its weight, contains `draw`."""
    aim = draw * sum(weights.values())
    for key, weight in weights.items():
        aim -= weight
        if aim < 0:
            return key
    return [key for key, weight in weights.items() if weight > 0][-1]  # only by rounding


def text_id(texts: Sequence[str]) -> str:
    """An id for user turns: equal for equal text, on any machine at any time."""
    return hashlib.blake2b("\x1f".join(texts).encode(), digest_size=10).hexdigest()


def hash64(*parts: str | int) -> int:
    """A 64-bit hash, the same on any machine at any time."""
    joined = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(joined.encode(), digest_size=8).digest(), "big")


def salted_hash(salt: str, text: str) -> str:
    """A hash that can be compared within one run and reveals nothing outside it."""
    return hashlib.blake2b(text.encode(), digest_size=10, key=salt.encode()[:64]).hexdigest()
