"""The privacy filter on a labelled corpus, beside Presidio's defaults: `python -m benchmarks.privacy`.

Two forms of corpora are read, as a JSON list or as JSON lines, packed with gzip or not:

    presidio-research   {"full_text": ..., "spans": [{"entity_type", "start_position", "end_position"}]}
    kiji, ai4privacy    {"text" or "source_text": ..., "privacy_mask": [{"label", "value"}, and maybe "start", "end"]}

strict     the same kind and the same characters
covering   a value counts as found if every letter and digit of it is covered, whatever its kind; a finding counts as
           right if it touches a labelled value

Labels without a counterpart (AGE, DATE_TIME, TITLE, ...) are left out, as are findings that touch them.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

from benchmarks.command import Output, run
from fledge.base.console import print_table, say
from fledge.base.errors import DataError
from fledge.base.storage import read_bytes, refuse_unwritable, write_json
from fledge.bench.workloads import find_workload
from fledge.data.privacy import PrivacyFilter
from fledge.data.privacy import entities as e
from fledge.data.privacy.filter import require_privacy_extra

Scan = Callable[[str], "Sequence[Span]"]

# What corpora and Presidio call the kinds that have another name here. Towns and streets are one kind: where an address
# begins is a matter of taste. So are national numbers, tax numbers and identity cards.
_KINDS = {
    e.PERSON: "PERSON FIRSTNAME LASTNAME MIDDLENAME SURNAME GIVENNAME NAME",
    e.LOCATION: "LOCATION GPE ADDRESS STREET_ADDRESS STREET CITY STATE COUNTY COUNTRY ZIP ZIPCODE ZIP_CODE BUILDINGNUM"
    " BUILDINGNUMBER SECONDARYADDRESS NEARBYGPSCOORDINATE",
    e.EMAIL_ADDRESS: "EMAIL_ADDRESS EMAIL",
    e.PHONE_NUMBER: "PHONE_NUMBER PHONENUMBER PHONE TELEPHONENUM",
    e.CREDIT_CARD: "CREDIT_CARD CREDITCARDNUMBER",
    e.IBAN_CODE: "IBAN_CODE IBAN",
    e.BANK_ACCOUNT: "BANK_ACCOUNT US_BANK_NUMBER ACCOUNTNUMBER",
    e.NATIONAL_ID: "NATIONAL_ID US_SSN US_ITIN SSN NATIONALID IDCARDNUM TAX_ID TAXNUM UK_NINO ES_NIF ES_NIE"
    " IT_FISCAL_CODE PL_PESEL IT_VAT_CODE IT_IDENTITY_CARD",
    e.PASSPORT: "PASSPORT US_PASSPORT PASSPORTID IT_PASSPORT",
    e.DRIVER_LICENSE: "DRIVER_LICENSE US_DRIVER_LICENSE DRIVERLICENSENUM IT_DRIVER_LICENSE",
    e.DATE_OF_BIRTH: "DATE_OF_BIRTH DATEOFBIRTH DOB",
    e.IP_ADDRESS: "IP_ADDRESS IP IPV4 IPV6",
    e.MAC_ADDRESS: "MAC_ADDRESS MAC",
    e.MEDICAL_ID: "MEDICAL_ID UK_NHS MEDICAL_LICENSE",
    e.VEHICLE_ID: "VEHICLE_ID LICENSEPLATENUM VEHICLEVRM VEHICLEVIN",
    e.USERNAME: "USERNAME",
    e.CRYPTO: "CRYPTO BITCOINADDRESS ETHEREUMADDRESS LITECOINADDRESS",
    e.PASSWORD: "PASSWORD PIN",
    e.API_KEY: "API_KEY SECURITYTOKEN",
    **{kind: kind for kind in (e.BANK_ROUTING, e.INSURANCE_ID, e.PRIVATE_KEY, e.URL_CREDENTIALS)},
}
_KIND = {name: kind for kind, names in _KINDS.items() for name in names.split()}


@dataclass(frozen=True)
class Span:
    """A labelled value or a finding: text[start:end]; the kind is None for labels without a counterpart."""

    start: int
    end: int
    kind: str | None


@dataclass(frozen=True)
class Labelled:
    """A text of the corpus and the values in it."""

    text: str
    spans: tuple[Span, ...]


@dataclass
class Score:
    """Counts of one kind; strict and covering."""

    labelled: int = 0
    found: int = 0
    covered: int = 0
    reported: int = 0
    right: int = 0
    touching: int = 0

    @property
    def cells(self) -> list[str]:
        """Strict recall and precision, covering recall and precision."""
        pairs = (
            (self.found, self.labelled),
            (self.right, self.reported),
            (self.covered, self.labelled),
            (self.touching, self.reported),
        )
        return [f"{a / b:.3f}" if b else "-" for a, b in pairs]


@dataclass
class FilterScores:
    """One filter's figures on a corpus and on prompts that hold nobody's data."""

    name: str
    kinds: dict[str, Score] = field(default_factory=dict)
    texts_per_s: float = 0.0
    changed: int = 0
    clean: int = 0


def read_corpus(place: str) -> list[Labelled]:
    """The texts of a corpus file; raises DataError if it has neither of the two forms."""
    try:
        packed = read_bytes(place)
        text = (gzip.decompress(packed) if place.endswith(".gz") else packed).decode("utf-8-sig")
        rows = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.split("\n") if line.strip()]  # not at U+2028
        )
        return [_labelled(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, gzip.BadGzipFile) as error:
        raise DataError(
            f"{place} is no labelled corpus ({type(error).__name__}: {error}); fledge reads presidio-research's form "
            '({"full_text", "spans"}) and privacy masks ({"text", "privacy_mask"}), as a JSON list or as JSON lines'
        ) from error


def _labelled(row: Mapping[str, Any]) -> Labelled:
    if "full_text" in row:
        spans = [
            Span(s["start_position"], s["end_position"], _KIND.get(s["entity_type"])) for s in row["spans"]
        ]
        return Labelled(row["full_text"], tuple(spans))
    text = row["text"] if "text" in row else row["source_text"]
    return Labelled(text, tuple(span for mask in row["privacy_mask"] for span in _masked(text, mask)))


def _masked(text: str, mask: Mapping[str, Any]) -> Iterator[Span]:
    """A masked value: at its place if that is given, else wherever it stands as a whole word."""
    kind = _KIND.get(re.sub(r"\d+$", "", mask["label"].upper()))
    if isinstance(mask.get("start"), int) and isinstance(mask.get("end"), int):
        yield Span(mask["start"], mask["end"], kind)
        return
    for match in re.finditer(rf"(?<!\w){re.escape(mask['value'])}(?!\w)", text):
        yield Span(*match.span(), kind)


def measure_privacy(
    corpus: Sequence[Labelled], clean: Sequence[Sequence[str]], presidio: bool = True
) -> list[FilterScores]:
    """fledge's filter, and Presidio's defaults unless left out, on the corpus and on clean conversations."""
    filters = [("fledge", _fledge())]
    if presidio:
        filters.append(_presidio())
    return [_measure(name, scan, corpus, clean) for name, scan in filters]


def _measure(
    name: str, scan: Scan, corpus: Sequence[Labelled], clean: Sequence[Sequence[str]]
) -> FilterScores:
    scores = FilterScores(name, clean=len(clean))
    scan("My name is Ada Holm, call 555 123 4567.")  # loads what is loaded on first use
    begin = time.perf_counter()
    found = [scan(record.text) for record in corpus]
    scores.texts_per_s = len(corpus) / max(1e-9, time.perf_counter() - begin)
    for record, spans in zip(corpus, found, strict=True):
        _count(scores.kinds, record, spans)
    scores.changed = sum(any(scan(turn) for turn in turns) for turns in clean)
    return scores


def _count(kinds: dict[str, Score], record: Labelled, found: Sequence[Span]) -> None:
    covered = {at for span in found for at in range(span.start, span.end)}
    for span in record.spans:
        if span.kind is not None:
            score = kinds.setdefault(span.kind, Score())
            score.labelled += 1
            score.found += span in found
            score.covered += all(
                at in covered for at in range(span.start, span.end) if record.text[at].isalnum()
            )
    for span in found:
        touched = [other for other in record.spans if other.start < span.end and span.start < other.end]
        if span.kind is None or (touched and all(other.kind is None for other in touched)):
            continue
        score = kinds.setdefault(span.kind, Score())
        score.reported += 1
        score.right += span in record.spans
        score.touching += bool(touched)


def total(kinds: Iterable[Score]) -> Score:
    """The sum of scores."""
    added = Score()
    for score in kinds:
        for name, value in asdict(score).items():
            setattr(added, name, getattr(added, name) + value)
    return added


def _fledge() -> Scan:
    privacy = PrivacyFilter()
    return lambda text: [Span(f.start, f.end, _KIND.get(f.entity, f.entity)) for f in privacy.scan(text)]


def _presidio() -> tuple[str, Scan]:
    """Presidio as it comes, with the spaCy model of its defaults if that is installed."""
    import importlib.util

    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NoOpNlpEngine

    if importlib.util.find_spec("en_core_web_lg") is not None:
        engine: Any = AnalyzerEngine()
        name = "presidio"
    else:
        none: Any = NoOpNlpEngine(models=[{"lang_code": "en", "model_name": "none"}])
        engine, name = (
            AnalyzerEngine(nlp_engine=none),
            "presidio without en_core_web_lg, which isn't installed",
        )

    def scan(text: str) -> list[Span]:
        results = [r for r in engine.analyze(text, "en") if r.entity_type in _KIND]
        return [Span(r.start, r.end, _KIND[r.entity_type]) for r in results]

    return name, scan


def privacy_table(scores: FilterScores) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: a kind each, and all together."""
    columns = ["entity", "labelled", "strict recall", "precision", "covering recall", "precision"]
    rows = [[kind, str(score.labelled), *score.cells] for kind, score in sorted(scores.kinds.items())]
    every = total(scores.kinds.values())
    return columns, [*rows, ["all", str(every.labelled), *every.cells]]


def privacy_notes(scores: FilterScores) -> str:
    """One line: what clean prompts lose, and the speed."""
    share = (
        f"{scores.changed} of {scores.clean} clean prompts changed"
        if scores.clean
        else "no clean prompts given"
    )
    return f"{scores.name}: {share}; {scores.texts_per_s:,.0f} texts/s in one process"


def main(
    corpus: Annotated[str, typer.Option(help="labelled texts: presidio-research's form, or privacy masks")],
    clean: Annotated[
        str,
        typer.Option(
            help="prompts without personal data: a set as in `fledge bench server`, a file, or none"
        ),
    ] = "mixed",
    presidio: Annotated[bool, typer.Option(help="Presidio's defaults in the same run")] = True,
    output: Output = "privacy.json",
) -> None:
    """Measure the privacy filter on a labelled corpus, beside Presidio's."""
    refuse_unwritable(output)
    require_privacy_extra()
    texts = read_corpus(corpus)
    prompts = [] if clean == "none" else [prompt.turns for prompt in find_workload(clean).prompts]
    measured = measure_privacy(texts, prompts, presidio)
    for scores in measured:
        print_table(scores.name, *privacy_table(scores))
    say(*map(privacy_notes, measured))
    write_json(output, [asdict(scores) for scores in measured])
    say(f"written: {output}")


if __name__ == "__main__":
    run(main)
