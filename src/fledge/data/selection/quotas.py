"""Distributes a number of prompts by weight when some sources don't have enough."""

from __future__ import annotations

from collections.abc import Mapping


def share_out(count: int, weights: Mapping[str, float], available: Mapping[str, int]) -> dict[str, int]:
    """Number to take from each: by weight, at most what is available, with the remainder shared among the others.

    The result adds up to `count`, or to everything available. Fractions go to the largest remainders.
    """
    quota = dict.fromkeys(weights, 0)
    remaining = min(count, sum(available[name] for name in weights))
    open_names = [name for name in weights if available[name] > 0 and weights[name] > 0]
    while remaining > 0 and open_names:
        total = sum(weights[name] for name in open_names)
        share = {name: remaining * weights[name] / total for name in open_names}
        full = [name for name in open_names if quota[name] + share[name] >= available[name]]
        if full:
            for name in full:
                remaining -= available[name] - quota[name]
                quota[name] = available[name]
            open_names = [name for name in open_names if name not in full]
            continue
        for name in open_names:
            quota[name] += int(share[name])
        leftover = remaining - sum(int(share[name]) for name in open_names)
        by_remainder = sorted(open_names, key=lambda name: (int(share[name]) - share[name], name))
        for name in by_remainder[:leftover]:
            quota[name] += 1
        break
    return quota
