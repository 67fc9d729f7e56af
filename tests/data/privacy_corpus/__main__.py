"""python -m tests.data.privacy_corpus: recall, precision and throughput of the privacy filter on the labelled corpus."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from fledge.data.privacy import Finding, PrivacyFilter, PrivacyOptions
from fledge.data.privacy import entities as e
from tests.data.privacy_corpus.corpus import (
    LOCALES,
    Labelled,
    make_corpus,
    make_fifth_corpus,
    make_fourth_corpus,
    make_second_corpus,
    make_third_corpus,
)
from tests.data.privacy_corpus.measure import Mistake, Score, Scores, measure, throughput, total

console = Console()


_OTHERS = {
    "second": (make_second_corpus, "the corpus in other words and shapes, without neutral sentences"),
    "third": (make_third_corpus, "of ten countries' identifiers and names, in forms, tables, logs, chats"),
    "fourth": (
        make_fourth_corpus,
        "by who had not seen the rules: what people paste into a chat, and request logs",
    ),
    "fifth": (make_fifth_corpus, "the same kind in other words, written blind after version 7 of the rules"),
}
_PLACES = (e.LOCATION, e.STREET_ADDRESS)
# What Presidio calls the entities that have another name here.
_PRESIDIO = {
    "US_SSN": e.NATIONAL_ID, "UK_NINO": e.NATIONAL_ID, "ES_NIF": e.NATIONAL_ID, "US_ITIN": e.TAX_ID, "UK_NHS": e.MEDICAL_ID,
    "US_PASSPORT": e.PASSPORT, "UK_PASSPORT": e.PASSPORT, "US_DRIVER_LICENSE": e.DRIVER_LICENSE, "US_BANK_NUMBER": e.BANK_ACCOUNT,
    "ABA_ROUTING_NUMBER": e.BANK_ROUTING,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 where treated texts still hold something."""
    parser = argparse.ArgumentParser(prog="python -m tests.data.privacy_corpus", description=__doc__)
    parser.add_argument("--records", type=int, default=4000, help="labelled texts")
    parser.add_argument("--half", choices=["develop", "report", "all"], default="report", help="templates")
    parser.add_argument(
        "--names",
        choices=["listed", "unlisted"],
        default="listed",
        help="unlisted: names the filter has no list of",
    )
    for name, (make, told) in _OTHERS.items():
        parser.add_argument(f"--{name}", action="store_const", const=make, dest="make", help=told)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="of the throughput measurement")
    parser.add_argument(
        "--presidio", action="store_true", help="Presidio's own recognisers beside it, on the English texts"
    )
    parser.add_argument("--mistakes", type=int, default=0, help="print so many misses and false alarms")
    parser.add_argument("--json", help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if chosen.make and chosen.names == "unlisted":
        parser.error("--names unlisted is of the first corpus alone; leave the other's option out")
    make = chosen.make or partial(make_corpus, names=chosen.names)
    corpus = list(make(chosen.records, chosen.half, chosen.seed))
    found: list[Mistake] = []
    privacy = PrivacyFilter(policy="surrogate")
    scores = measure(corpus, privacy.scan, found)
    _print_scores(scores)
    for mistake in found[: chosen.mistakes]:
        console.print(f"{mistake.kind} {mistake.entity} ({mistake.language}): {mistake.around}", markup=False)
    leaks = {policy: _leaks(corpus, policy) for policy in ("surrogate", "redact")}
    for policy, (dropped, left) in leaks.items():
        console.print(
            f"after {policy}: {left} findings in {len(corpus)} records, {dropped} records dropped by the second pass"
        )
    words = statistics.median(len(record.text.split()) for record in corpus)
    rate = throughput(corpus, chosen.processes)
    console.print(f"{rate:,.0f} prompts/s with {chosen.processes} processes, median {words:.0f} words")
    if chosen.presidio:
        _print_presidio(corpus)
    if chosen.json:
        _write(chosen.json, scores, leaks, rate, words, chosen.processes)
    return 1 if any(left for _, left in leaks.values()) else 0


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the terminal."""
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_scores(scores: Scores) -> None:
    languages = list(LOCALES)
    rows = [
        [entity, *(_cell(scores.get((entity, language), Score())) for language in languages)]
        for entity in e.DEFAULT
    ]
    groups = {
        "identifiers and secrets": e.PATTERNED,
        "names": (e.PERSON,),
        "places": _PLACES,
        "names and places": e.NAMES,
    }
    rows += [
        [name, *(_cell(total(scores, some, [language])) for language in languages)]
        for name, some in groups.items()
    ]
    print_table("recall / precision (planted values)", ["entity", *languages], rows)
    for name, some in groups.items():
        console.print(f"{name}, all languages: {_cell(total(scores, some, languages))}", markup=False)


def _cell(score: Score) -> str:
    if not score.planted and not score.reported:
        return ""
    recall, precision = (
        ("-" if share is None else f"{share:.3f}") for share in (score.recall, score.precision)
    )
    return f"{recall} / {precision} ({score.planted})"


def _leaks(corpus: Sequence[Labelled], policy: str) -> tuple[int, int]:
    """Records the second pass dropped, and findings a fresh filter has in the others."""
    options = PrivacyOptions.model_validate({"policy": policy})
    privacy, fresh = PrivacyFilter(options=options), PrivacyFilter(options=options)
    treated = [privacy.treat(record.text) for record in corpus]
    return sum(t.turns is None for t in treated), sum(len(fresh.scan(t.text)) for t in treated if t.text)


def _print_presidio(corpus: Sequence[Labelled]) -> None:
    english = [record for record in corpus if record.language == "en"]
    scan, model = _presidio()
    begin = time.perf_counter()
    scores = measure(english, scan)
    rate = len(english) / (time.perf_counter() - begin)
    rows = [[entity, _cell(scores.get((entity, "en"), Score()))] for entity in e.DEFAULT]
    print_table(
        f"Presidio's own recognisers, English, {model}: {rate:,.0f} prompts/s in one process",
        ["entity", "en"],
        rows,
    )


def _presidio() -> tuple[Callable[[str], Sequence[Finding]], str]:
    """Presidio as it comes: with the spaCy model it would choose if that is installed, else without any."""
    import importlib.util

    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NoOpNlpEngine

    installed = importlib.util.find_spec("en_core_web_lg") is not None
    engine: Any = (
        AnalyzerEngine()
        if installed
        else AnalyzerEngine(nlp_engine=NoOpNlpEngine(models=[{"lang_code": "en", "model_name": "none"}]))
    )

    def scan(text: str) -> list[Finding]:
        results = engine.analyze(text, "en", score_threshold=0.4)
        return [
            Finding(r.start, r.end, _PRESIDIO.get(r.entity_type, r.entity_type), r.score) for r in results
        ]

    return scan, "with en_core_web_lg" if installed else "without its spaCy model, which is not installed"


def _write(
    path: str, scores: Scores, leaks: dict[str, tuple[int, int]], rate: float, words: float, processes: int
) -> None:
    rows = [
        {
            "entity": entity,
            "language": language,
            "planted": s.planted,
            "recall": s.recall,
            "precision": s.precision,
        }
        for (entity, language), s in sorted(scores.items())
    ]
    figures = {
        "scores": rows,
        "second_pass": {
            policy: {"dropped": dropped, "left": left} for policy, (dropped, left) in leaks.items()
        },
        "prompts_per_second": rate,
        "processes": processes,
        "median_words": words,
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(figures, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
