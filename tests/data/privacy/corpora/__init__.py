"""Five corpora of invented personal data: 500 labelled texts each, in five languages (docs/lab/privacy.md).

A text a line in presidio-research's form, so that `python -m benchmarks.privacy --corpus FILE` measures them, too. They
are packed so that nobody's scanner takes the invented keys for real ones.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fledge.data.privacy import PrivacyFilter
from fledge.data.privacy import entities as e
from fledge.data.privacy.entities import Finding

NAMES = ("first", "second", "third", "fourth", "fifth")
_SAME = {e.STREET_ADDRESS: e.LOCATION}  # where a town ends and an address begins is a matter of taste


class Labelled(NamedTuple):
    """A text and the personal data in it."""

    text: str
    language: str
    spans: list[Finding]


def read(name: str) -> list[Labelled]:
    """The texts of a corpus."""
    lines = gzip.decompress((Path(__file__).parent / f"{name}.jsonl.gz").read_bytes()).decode().split("\n")
    rows = [json.loads(line) for line in lines if line]
    return [
        Labelled(
            row["full_text"],
            row["language"],
            [Finding(s["start_position"], s["end_position"], s["entity_type"], 1.0) for s in row["spans"]],
        )
        for row in rows
    ]


def recall_and_precision(
    privacy: PrivacyFilter, corpus: Iterable[Labelled], entities: Sequence[str]
) -> tuple[float, float]:
    """The share of values of these entities that are found, and of such findings that are right.

    Either holds where at least half of the characters are covered by spans of the entity.
    """
    hits, right = [], []
    for record in corpus:
        found = privacy.scan(record.text)
        hits += [_covered(span, found) >= 0.5 for span in record.spans if span.entity in entities]
        right += [_covered(span, record.spans) >= 0.5 for span in found if span.entity in entities]
    return sum(hits) / len(hits), sum(right) / len(right)


def _covered(span: Finding, others: Iterable[Finding]) -> float:
    """Share of the span's characters that others of its entity cover."""
    kind = _SAME.get(span.entity, span.entity)
    places: set[int] = set()
    for other in others:
        if _SAME.get(other.entity, other.entity) == kind:
            places.update(range(max(span.start, other.start), min(span.end, other.end)))
    return len(places) / max(1, span.end - span.start)
