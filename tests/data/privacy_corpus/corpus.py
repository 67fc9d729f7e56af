"""The corpus: templates in five languages filled with values by Faker, among sentences that hold none.

Every second template belongs to the half the rules were developed on (`develop`), the others to the half that is
reported (`report`). The same seed gives the same corpus. Nobody's data is in it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from faker import Faker

from fledge.data.privacy.entities import Finding
from tests.data.privacy_corpus.fourth_values import FOURTH_VALUES, FifthValues, FourthValues
from tests.data.privacy_corpus.second_values import SECOND_VALUES, SecondValues
from tests.data.privacy_corpus.third_values import THIRD_VALUES, ThirdValues
from tests.data.privacy_corpus.values import VALUES, Values

_Source = TypeVar("_Source")  # draws the values of one text

Half = Literal["develop", "report", "all"]
Names = Literal["listed", "unlisted"]

LOCALES = {
    "en": ("en_US", "en_GB"),
    "de": ("de_DE",),
    "fr": ("fr_FR",),
    "es": ("es_ES", "es_MX"),
    "pt": ("pt_PT", "pt_BR"),
}
_SLOT = re.compile(r"\{(\w+)\}")
_FILLERS = 5  # neutral sentences around a template, on average: the median record has about 60 words
_PLAIN = 0.2  # share of records without personal data


@dataclass(frozen=True)
class Labelled:
    """A text and the personal data in it."""

    text: str
    language: str
    template: str
    spans: tuple[Finding, ...]

    @property
    def values(self) -> list[str]:
        """The planted values."""
        return [self.text[span.start : span.end] for span in self.spans]


def make_corpus(
    records: int, half: Half = "all", seed: int = 0, names: Names = "listed"
) -> Iterator[Labelled]:
    """Labelled texts, the languages in turn. `unlisted`: English names from another list than the filter's."""
    rng = random.Random(seed)
    fakers = {language: [Faker(locale) for locale in LOCALES[language]] for language in LOCALES}
    for number, faker in enumerate(faker for some in fakers.values() for faker in some):
        faker.seed_instance(seed * 1000 + number)
    templates = {language: _lines("templates", language, half) for language in LOCALES}
    fillers = {language: _lines("fillers", language, "all") for language in LOCALES}
    languages = list(LOCALES) if names == "listed" else ["en"]
    for number in range(records):
        language = languages[number % len(languages)]
        values = Values(rng.choice(fakers[language]), rng, unlisted=names == "unlisted")
        template = "" if rng.random() < _PLAIN else rng.choice(templates[language])
        count = rng.randint(_FILLERS - 2, _FILLERS + 2)
        sentences = rng.sample(fillers[language], count)
        if template:
            sentences.insert(rng.randint(0, count), template)
        drawn = {name: (entity, partial(draw, values)) for name, (entity, draw) in VALUES.items()}
        yield _fill(sentences, language, template, drawn, rng)


def make_second_corpus(records: int, half: Half = "all", seed: int = 0) -> Iterator[Labelled]:
    """Labelled texts of the second corpus: one line each without neutral sentences around it, the languages in turn."""
    rng = random.Random(seed)
    return _single_lines(
        "second", records, half, rng, lambda language: SecondValues(rng, language), SECOND_VALUES
    )


def make_third_corpus(records: int, half: Half = "all", seed: int = 0) -> Iterator[Labelled]:
    """Labelled texts of the third corpus: as the second, with Faker's values of more countries."""
    rng, fakers = random.Random(seed), ThirdValues.make_fakers(seed)
    return _single_lines(
        "third", records, half, rng, lambda language: ThirdValues(rng, language, fakers), THIRD_VALUES
    )


def make_fourth_corpus(records: int, half: Half = "all", seed: int = 0) -> Iterator[Labelled]:
    """Labelled texts of the fourth corpus: as the third, by an author who had not seen the filter's rules."""
    return _pasted(FourthValues, records, half, seed)


def make_fifth_corpus(records: int, half: Half = "all", seed: int = 0) -> Iterator[Labelled]:
    """Labelled texts of the fifth corpus: the fourth's values in other words, which the rules were never changed by."""
    return _pasted(FifthValues, records, half, seed)


def negatives() -> dict[str, list[str]]:
    """Prompts of each language that hold nobody's data: maths, code, news, fiction, products."""
    return {language: _lines("negatives", language, "all") for language in LOCALES}


def _pasted(source: type[FourthValues], records: int, half: Half, seed: int) -> Iterator[Labelled]:
    """What people paste into a chat, from the templates and lists of the source's folder."""
    rng, fakers = random.Random(seed), source.make_fakers(seed)
    return _single_lines(
        source.folder, records, half, rng, lambda language: source(rng, language, fakers), FOURTH_VALUES
    )


def _single_lines(
    folder: str,
    records: int,
    half: Half,
    rng: random.Random,
    values_of: Callable[[str], _Source],
    slots: Mapping[str, tuple[str | None, Callable[[_Source], str]]],
) -> Iterator[Labelled]:
    """One template each, the languages in turn; `values_of` a language draws what fills the slots."""
    lines = {language: _lines(folder, language, half) for language in LOCALES}
    for number in range(records):
        language = list(LOCALES)[number % len(LOCALES)]
        some = lines[language]
        template = some[number // len(LOCALES) % len(some)]
        values = values_of(language)
        drawn = {name: (entity, partial(draw, values)) for name, (entity, draw) in slots.items()}
        yield _fill([template], language, template, drawn, rng)


def _lines(folder: str, language: str, half: Half) -> list[str]:
    text = (Path(__file__).parent / folder / f"{language}.txt").read_text("utf-8")
    lines = [line.replace("\\n", "\n") for line in text.splitlines() if line]
    return lines if half == "all" else lines[(half == "report") :: 2]


Drawn = Mapping[str, tuple[str | None, Callable[[], str]]]  # slot -> entity and how to draw a value


def _fill(sentences: list[str], language: str, template: str, drawn: Drawn, rng: random.Random) -> Labelled:
    text, spans = "", []
    for sentence in sentences:
        text += rng.choice((" ", " ", "\n")) if text else ""
        at = 0
        for slot in _SLOT.finditer(sentence):
            if slot[1] not in drawn:
                continue
            entity, make = drawn[slot[1]]
            value = make()
            text += sentence[at : slot.start()]
            if entity is not None:
                spans.append(Finding(len(text), len(text) + len(value), entity, 1.0))
            text += value
            at = slot.end()
        text += sentence[at:]
    return Labelled(text, language, template, tuple(spans))
