"""Overlapping findings are resolved by character: each belongs to the surest, then longest, finding over it."""

from __future__ import annotations

import random

from fledge.data.privacy.entities import Finding, without_overlaps


def owners(findings: list[Finding]) -> dict[int, tuple[str, float]]:
    """What each character of the text belongs to."""
    found: dict[int, tuple[str, float]] = {}
    for one in sorted(findings, key=lambda f: (-f.score, f.start - f.end, f.start, f.entity)):
        for place in range(one.start, one.end):
            found.setdefault(place, (one.entity, one.score))
    return found


def test_every_character_goes_to_its_surest_finding() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        findings = []
        for _ in range(draw.randint(0, 9)):
            start = draw.randint(0, 25)
            findings.append(
                Finding(start, start + draw.randint(1, 9), draw.choice("AB"), draw.choice((0.5, 0.7, 0.9)))
            )
        kept = without_overlaps(findings)
        assert kept == sorted(kept)
        assert sum(f.end - f.start for f in kept) == len(owners(findings))  # none twice
        assert owners(kept) == owners(findings)
