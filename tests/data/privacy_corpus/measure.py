"""Recall and precision per entity and language.

A planted value is found if findings of its entity cover at least half of its characters; a finding is right if at
least half of its characters lie in planted values of its entity. Towns and street addresses count as one entity
here, for where a town ends and an address begins is a matter of taste. And how many prompts a second are treated.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fledge.data.privacy import PrivacyFilter
from fledge.data.privacy import entities as e
from fledge.data.privacy.entities import Finding
from fledge.data.processes import map_in_processes
from tests.data.privacy_corpus.corpus import Labelled

_HALF = 0.5
_BLOCK = 64  # texts handed to a process at once
_SAME = {e.STREET_ADDRESS: e.LOCATION}

Scan = Callable[[str], Sequence[Finding]]


@dataclass
class Score:
    """Counts of one entity."""

    planted: int = 0
    found: int = 0
    reported: int = 0
    right: int = 0

    @property
    def recall(self) -> float | None:
        """Share of planted values that were found; None if none was planted."""
        return self.found / self.planted if self.planted else None

    @property
    def precision(self) -> float | None:
        """Share of findings that are right; None without findings."""
        return self.right / self.reported if self.reported else None

    def add(self, other: Score) -> None:
        """Sum."""
        self.planted += other.planted
        self.found += other.found
        self.reported += other.reported
        self.right += other.right


Scores = dict[tuple[str, str], Score]  # (entity, language)


@dataclass(frozen=True)
class Mistake:
    """A miss or a false alarm, for whoever works on the rules. The corpus is invented, so showing it is fine."""

    kind: str
    entity: str
    language: str
    value: str
    around: str


def measure(corpus: Iterable[Labelled], scan: Scan, mistakes: list[Mistake] | None = None) -> Scores:
    """Scan every text and compare."""
    scores: defaultdict[tuple[str, str], Score] = defaultdict(Score)
    for record in corpus:
        found = scan(record.text)
        for planted in record.spans:
            score = scores[planted.entity, record.language]
            score.planted += 1
            hit = _covered(planted, found) >= _HALF
            score.found += hit
            if not hit and mistakes is not None:
                mistakes.append(_mistake("missed", planted, record))
        for finding in found:
            score = scores[finding.entity, record.language]
            score.reported += 1
            right = _covered(finding, record.spans) >= _HALF
            score.right += right
            if not right and mistakes is not None:
                mistakes.append(_mistake("wrong", finding, record))
    return dict(scores)


def total(scores: Scores, entities: Iterable[str], languages: Iterable[str]) -> Score:
    """The sum over entities and languages."""
    score = Score()
    chosen_entities, chosen_languages = set(entities), set(languages)
    for (entity, language), part in scores.items():
        if entity in chosen_entities and language in chosen_languages:
            score.add(part)
    return score


def _covered(span: Finding, others: Iterable[Finding]) -> float:
    """Share of the span's characters that others of its entity cover."""
    kind = _SAME.get(span.entity, span.entity)
    places: set[int] = set()
    for other in others:
        if _SAME.get(other.entity, other.entity) == kind:
            places.update(range(max(span.start, other.start), min(span.end, other.end)))
    return len(places) / max(1, span.end - span.start)


def _mistake(kind: str, span: Finding, record: Labelled) -> Mistake:
    text = record.text
    around = text[max(0, span.start - 30) : span.end + 20].replace("\n", "\\n")
    return Mistake(kind, span.entity, record.language, text[span.start : span.end], around)


def throughput(corpus: Sequence[Labelled], processes: int) -> float:
    """Prompts per second of scanning, replacing and scanning again, the start of the processes left out."""
    texts = [record.text for record in corpus]
    blocks = [texts[at : at + _BLOCK] for at in range(0, len(texts), _BLOCK)]
    rounds = max(1, 4000 // len(texts))
    results = map_in_processes(_treats, [*blocks[:4], *blocks * rounds], processes)
    for _ in blocks[:4]:
        next(results)
    begin = time.perf_counter()
    count = sum(results)
    return count / (time.perf_counter() - begin)


def _treats() -> Callable[[list[str]], int]:
    """Treats a block of texts and says how many they were."""
    privacy = PrivacyFilter()
    return lambda texts: len([privacy.treat(text) for text in texts])
