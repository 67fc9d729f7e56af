"""Seeds and ids by hashing: what happens to one prompt depends on that prompt, never on its neighbours."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def derive_seed(*parts: str | int) -> int:
    """A 63-bit seed for (stage seed, purpose, index, ...)."""
    return hash64(*parts) >> 1


def unit_interval(*parts: str | int) -> float:
    """A number in [0, 1) that looks random and is the same for the same parts."""
    return (hash64(*parts) >> 11) / (1 << 53)


def pick(weights: Mapping[T, float], coin: float) -> T:
    """The key on which a coin in [0, 1) falls when each key owns its weight's share."""
    aim = coin * sum(weights.values())
    for key, weight in weights.items():
        aim -= weight
        if aim < 0:
            return key
    return [key for key, weight in weights.items() if weight > 0][-1]  # rounding left a little of the coin


def text_id(texts: Sequence[str]) -> str:
    """An id for user turns: equal for equal text, wherever and whenever it was made."""
    return hashlib.blake2b("\x1f".join(texts).encode(), digest_size=10).hexdigest()


def hash64(*parts: str | int) -> int:
    """A 64-bit hash, the same wherever and whenever it is made."""
    joined = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(joined.encode(), digest_size=8).digest(), "big")


def salted_hash(salt: str, text: str) -> str:
    """A hash that can be compared within one run and tells nothing outside it."""
    return hashlib.blake2b(text.encode(), digest_size=10, key=salt.encode()[:64]).hexdigest()
