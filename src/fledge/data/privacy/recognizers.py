"""The rules as Presidio recognisers, run by Presidio's analyser without a language model.

In place of a language model the analyser has `CluesEngine`: it looks at a text once and passes its clues to every
recogniser, which returns immediately if they rule it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from presidio_analyzer import AnalyzerEngine, EntityRecognizer, RecognizerRegistry, RecognizerResult
from presidio_analyzer.context_aware_enhancers import ContextAwareEnhancer
from presidio_analyzer.nlp_engine import NlpArtifacts, NoOpNlpEngine

from fledge.data.privacy import entities as e
from fledge.data.privacy.addresses import find_street_addresses
from fledge.data.privacy.births import find_births
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.columns import find_in_columns
from fledge.data.privacy.contact import find_contacts
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fields import find_in_fields
from fledge.data.privacy.forms import find_forms
from fledge.data.privacy.keyed import find_keyed
from fledge.data.privacy.labels import find_labelled
from fledge.data.privacy.names import find_people
from fledge.data.privacy.options import CustomPattern, DenyList, PrivacyOptions
from fledge.data.privacy.organizations import find_organizations
from fledge.data.privacy.places import find_places
from fledge.data.privacy.secrets import find_secrets

Find = Callable[[Clues], Iterable[Finding]]

ANY = "en"  # Presidio groups recognisers by language; ours support all five, so one name covers all
_NEAR = 50  # characters before a match that must contain one of CustomPattern.near

_RULES: tuple[tuple[str, Find, tuple[str, ...]], ...] = (
    ("forms", find_forms, (e.IBAN_CODE, e.CREDIT_CARD, e.NATIONAL_ID, e.TAX_ID, e.DRIVER_LICENSE, e.MAC_ADDRESS, e.IP_ADDRESS, e.CRYPTO)),
    ("labels", find_labelled, tuple(entity for entity in e.IDENTIFIERS if entity not in (e.EMAIL_ADDRESS, e.IP_ADDRESS))),
    ("births", find_births, (e.DATE_OF_BIRTH,)),
    ("keyed", find_keyed, (e.PASSWORD, *e.IDENTIFIERS)),
    ("contact", find_contacts, (e.EMAIL_ADDRESS, e.PHONE_NUMBER, e.URL_CREDENTIALS)),
    ("secrets", find_secrets, (e.API_KEY, e.PRIVATE_KEY, e.PASSWORD)),
    ("addresses", find_street_addresses, (e.STREET_ADDRESS,)),
    ("places", find_places, (e.LOCATION,)),
    ("people", find_people, (e.PERSON,)),
    ("fields", find_in_fields, (e.PERSON, e.LOCATION, e.STREET_ADDRESS)),
    ("columns", find_in_columns, (e.PERSON, e.LOCATION, e.STREET_ADDRESS, *e.IDENTIFIERS, e.PASSWORD)),
    ("organizations", find_organizations, (e.ORGANIZATION,)),
)  # fmt: skip


class FixedRegistry(RecognizerRegistry):
    """Presidio's registry with a fixed set of recognisers: lookups are cached instead of repeated for every text."""

    def get_recognizers(
        self,
        language: str,
        entities: list[str] | None = None,
        all_fields: bool = False,
        ad_hoc_recognizers: list[EntityRecognizer] | None = None,
    ) -> list[EntityRecognizer]:
        """As Presidio's, cached."""
        if ad_hoc_recognizers:
            return super().get_recognizers(language, entities, all_fields, ad_hoc_recognizers)
        key = language, tuple(entities or ()), all_fields
        if key not in self._remembered:
            self._remembered[key] = super().get_recognizers(language, entities, all_fields)
        return self._remembered[key]

    @cached_property
    def _remembered(self) -> dict[tuple[str, tuple[str, ...], bool], list[EntityRecognizer]]:
        return {}


class CluesArtifacts(NlpArtifacts):
    """What the analyser passes to recognisers: no tokens, only the clues."""

    def __init__(self, engine: NoOpNlpEngine, clues: Clues) -> None:
        super().__init__([], [], [], [], engine, ANY)
        self.clues = clues


class CluesEngine(NoOpNlpEngine):
    """Presidio's empty language engine, which also collects clues."""

    def __init__(self) -> None:
        super().__init__(models=[{"lang_code": ANY, "model_name": "none"}])

    def process_text(self, text: str, language: str) -> CluesArtifacts:
        """The clues of a text; no model runs."""
        return CluesArtifacts(self, Clues(text))


class RuleRecognizer(EntityRecognizer):
    """A rule of this package as a Presidio recogniser; also works in any other Presidio analyser."""

    def __init__(self, name: str, find: Find, supported: Sequence[str]) -> None:
        self._find = find
        super().__init__(supported_entities=list(supported), name=f"fledge {name}", supported_language=ANY)

    def load(self) -> None:
        """Nothing to load."""

    def analyze(
        self, text: str, entities: list[str], nlp_artifacts: NlpArtifacts | None = None
    ) -> list[RecognizerResult]:
        """The findings in Presidio's form."""
        clues = nlp_artifacts.clues if isinstance(nlp_artifacts, CluesArtifacts) else Clues(text)
        return [RecognizerResult(f.entity, f.start, f.end, f.score) for f in self._find(clues)]


class _NoContext(ContextAwareEnhancer):
    """Does nothing: the rules examine the words around a match themselves."""

    def __init__(self) -> None:
        super().__init__(0.0, 0.0, 0, 0)

    def enhance_using_context(
        self,
        text: str,
        raw_results: list[RecognizerResult],
        nlp_artifacts: NlpArtifacts,
        recognizers: list[EntityRecognizer],
        context: list[str] | None = None,
    ) -> list[RecognizerResult]:
        return raw_results


def make_analyzer(options: PrivacyOptions, extra: Iterable[EntityRecognizer]) -> AnalyzerEngine:
    """Presidio's analyser with the rules the options need, and further recognisers such as models."""
    wanted = options.wanted
    recognizers = [
        RuleRecognizer(name, find, kinds) for name, find, kinds in _RULES if wanted.intersection(kinds)
    ]
    for number, pattern in enumerate(options.patterns):
        recognizers.append(RuleRecognizer(f"pattern {number}", _pattern_rule(pattern), [pattern.entity]))
    for number, words in enumerate(options.deny):
        recognizers.append(RuleRecognizer(f"deny {number}", _deny_rule(words), [words.entity]))
    registry = FixedRegistry(recognizers=[*recognizers, *extra], supported_languages=[ANY])
    return AnalyzerEngine(
        registry=registry,
        nlp_engine=CluesEngine(),
        supported_languages=[ANY],
        context_aware_enhancer=_NoContext(),
    )


def _pattern_rule(pattern: CustomPattern) -> Find:
    regex = re.compile(pattern.regex)
    near = re.compile("|".join(map(re.escape, sorted(pattern.near, key=len, reverse=True))), re.IGNORECASE)

    def find(clues: Clues) -> Iterator[Finding]:
        for match in regex.finditer(clues.text):
            start, end = match.span(1) if regex.groups and match[1] is not None else match.span()
            if not pattern.near or near.search(clues.text, max(0, match.start() - _NEAR), start):
                yield Finding(start, end, pattern.entity, pattern.score)

    return find


def _deny_rule(deny: DenyList) -> Find:
    words = "|".join(map(re.escape, sorted(deny.words, key=len, reverse=True)))
    regex = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)

    def find(clues: Clues) -> Iterator[Finding]:
        return (Finding(*match.span(), deny.entity, 1.0) for match in regex.finditer(clues.text))

    return find


def findings_of(results: Iterable[Any]) -> list[Finding]:
    """Presidio's results as findings."""
    return [Finding(r.start, r.end, r.entity_type, float(r.score)) for r in results]
