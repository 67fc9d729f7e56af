"""The rules of this package, the recipe's own patterns and words, and models: everything that looks at a text.

Clues(text) ──► rule ──► findings, with overlaps
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.addresses import find_street_addresses
from fledge.data.privacy.births import find_births, find_signatures
from fledge.data.privacy.cjk import find_after_wide_labels
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.contact import find_contacts
from fledge.data.privacy.countries import find_by_country
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fields import find_in_columns, find_in_fields
from fledge.data.privacy.forms import find_forms
from fledge.data.privacy.handles import find_coordinates, find_handles
from fledge.data.privacy.labels import find_labelled
from fledge.data.privacy.names import find_people
from fledge.data.privacy.options import CustomPattern, DenyList, PrivacyOptions
from fledge.data.privacy.organizations import find_organizations
from fledge.data.privacy.places import find_places
from fledge.data.privacy.secrets import find_secrets

Find = Callable[[Clues], Iterable[Finding]]

_NEAR = 50  # characters before a match that must contain one of CustomPattern.near
_PLACES = (e.LOCATION, e.STREET_ADDRESS)

# Each rule with the entities it finds; a rule runs only if one of them is wanted.
_RULES: tuple[tuple[Find, tuple[str, ...]], ...] = (
    (find_forms, e.IDENTIFIERS),
    (find_labelled, e.IDENTIFIERS),
    (find_after_wide_labels, (*e.IDENTIFIERS, e.PASSWORD)),
    (find_by_country, e.IDENTIFIERS),
    (find_births, (e.DATE_OF_BIRTH,)),
    (find_signatures, (e.DATE_OF_BIRTH,)),
    (find_contacts, (e.EMAIL_ADDRESS, e.PHONE_NUMBER, e.URL_CREDENTIALS)),
    (find_handles, (e.USERNAME,)),
    (find_coordinates, (e.LOCATION,)),
    (find_secrets, (e.API_KEY, e.PRIVATE_KEY, e.PASSWORD)),
    (find_street_addresses, (e.STREET_ADDRESS,)),
    (find_places, (e.LOCATION,)),
    (find_people, (e.PERSON,)),
    (find_in_fields, (e.PERSON, *_PLACES, *e.IDENTIFIERS, e.PASSWORD)),
    (find_in_columns, (e.PERSON, *_PLACES, *e.IDENTIFIERS, e.PASSWORD)),
    (find_organizations, (e.ORGANIZATION,)),
)


def make_rules(options: PrivacyOptions) -> list[Find]:
    """Recognisers to run over every text: the rules the options need, the recipe's own, models and services."""
    rules = [find for find, kinds in _RULES if options.wanted.intersection(kinds)]
    rules += map(_pattern_rule, options.patterns)
    rules += map(_deny_rule, options.deny)
    if options.ner:  # their packages are imported only if there are any
        from fledge.data.privacy.ner import ner_rule

        rules += map(ner_rule, options.ner)
    if options.cloud_dlp:
        from fledge.data.privacy.cloud import cloud_rule

        rules.append(cloud_rule(options.cloud_dlp, options.wanted))
    return rules


def _pattern_rule(pattern: CustomPattern) -> Find:
    regex = re.compile(pattern.regex)
    near = re.compile("|".join(map(re.escape, sorted(pattern.near, key=len, reverse=True))), re.IGNORECASE)

    def find(clues: Clues) -> Iterator[Finding]:
        for match in regex.finditer(clues.original):
            start, end = match.span(1) if regex.groups and match[1] is not None else match.span()
            if not pattern.near or near.search(clues.original, max(0, match.start() - _NEAR), start):
                yield Finding(start, end, pattern.entity, pattern.score)

    return find


def _deny_rule(deny: DenyList) -> Find:
    words = "|".join(map(re.escape, sorted(deny.words, key=len, reverse=True)))
    regex = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)

    def find(clues: Clues) -> Iterator[Finding]:
        return (Finding(*match.span(), deny.entity, 1.0) for match in regex.finditer(clues.original))

    return find
