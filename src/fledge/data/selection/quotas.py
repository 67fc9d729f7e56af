"""Sharing a number of prompts out by weight when some sources don't have enough."""

from __future__ import annotations

from collections.abc import Mapping


def share_out(count: int, weights: Mapping[str, float], available: Mapping[str, int]) -> dict[str, int]:
    """How many to take of each: by weight, at most what is available, the rest shared among the others.

    The result adds up to `count`, or to everything there is. Fractions go to the largest remainders.
    """
    taken = dict.fromkeys(weights, 0)
    left = min(count, sum(available[name] for name in weights))
    open_names = [name for name in weights if available[name] > 0 and weights[name] > 0]
    while left > 0 and open_names:
        total = sum(weights[name] for name in open_names)
        wanted = {name: left * weights[name] / total for name in open_names}
        full = [name for name in open_names if taken[name] + wanted[name] >= available[name]]
        if full:
            for name in full:
                left -= available[name] - taken[name]
                taken[name] = available[name]
            open_names = [name for name in open_names if name not in full]
            continue
        for name in open_names:
            taken[name] += int(wanted[name])
        rest = left - sum(int(wanted[name]) for name in open_names)
        by_remainder = sorted(open_names, key=lambda name: (int(wanted[name]) - wanted[name], name))
        for name in by_remainder[:rest]:
            taken[name] += 1
        break
    return taken
