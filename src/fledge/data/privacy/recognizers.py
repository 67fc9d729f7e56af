"""What looks for personal data in a text: the rules, a recipe's own patterns and words, models and services.

Each is told what was seen at first (`Clues`) and returns at once where it has nothing to look for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.addresses import find_street_addresses
from fledge.data.privacy.births import find_births
from fledge.data.privacy.cloud import cloud_dlp
from fledge.data.privacy.clues import Clues, Find
from fledge.data.privacy.columns import find_in_columns
from fledge.data.privacy.contact import find_contacts
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fields import find_in_fields
from fledge.data.privacy.forms import find_forms
from fledge.data.privacy.keyed import find_keyed
from fledge.data.privacy.labels import find_labelled
from fledge.data.privacy.names import find_people
from fledge.data.privacy.ner import load_model
from fledge.data.privacy.options import CustomPattern, DenyList, PrivacyOptions
from fledge.data.privacy.organizations import find_organizations
from fledge.data.privacy.places import find_places
from fledge.data.privacy.secrets import find_secrets

_NEAR = 50  # characters before a match in which one of CustomPattern.near must stand

_RULES: tuple[tuple[Find, tuple[str, ...]], ...] = (
    (find_forms, (e.IBAN_CODE, e.CREDIT_CARD, e.NATIONAL_ID, e.TAX_ID, e.DRIVER_LICENSE, e.MAC_ADDRESS, e.IP_ADDRESS, e.CRYPTO)),
    (find_labelled, tuple(entity for entity in e.IDENTIFIERS if entity not in (e.EMAIL_ADDRESS, e.IP_ADDRESS))),
    (find_births, (e.DATE_OF_BIRTH,)),
    (find_keyed, (e.PASSWORD, *e.IDENTIFIERS)),
    (find_contacts, (e.EMAIL_ADDRESS, e.PHONE_NUMBER, e.URL_CREDENTIALS)),
    (find_secrets, (e.API_KEY, e.PRIVATE_KEY, e.PASSWORD)),
    (find_street_addresses, (e.STREET_ADDRESS,)),
    (find_places, (e.LOCATION,)),
    (find_people, (e.PERSON,)),
    (find_in_fields, (e.PERSON, e.LOCATION, e.STREET_ADDRESS)),
    (find_in_columns, (e.PERSON, e.LOCATION, e.STREET_ADDRESS, *e.IDENTIFIERS, e.PASSWORD)),
    (find_organizations, (e.ORGANIZATION,)),
)  # fmt: skip


def make_recognizers(options: PrivacyOptions) -> list[Find]:
    """The rules the options need, their own patterns and words, and the models and services beside them."""
    wanted = options.wanted
    return [
        *(find for find, entities in _RULES if wanted.intersection(entities)),
        *map(_pattern_rule, options.patterns),
        *map(_deny_rule, options.deny),
        *map(load_model, options.ner),
        *([cloud_dlp(options.cloud_dlp, wanted)] if options.cloud_dlp else []),
    ]


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
