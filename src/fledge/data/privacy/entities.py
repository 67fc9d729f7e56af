"""The entities the filter knows, in Presidio's spelling where Presidio has one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import NamedTuple

PERSON = "PERSON"
LOCATION = "LOCATION"
STREET_ADDRESS = "STREET_ADDRESS"
ORGANIZATION = "ORGANIZATION"
EMAIL_ADDRESS = "EMAIL_ADDRESS"
PHONE_NUMBER = "PHONE_NUMBER"
CREDIT_CARD = "CREDIT_CARD"
IBAN_CODE = "IBAN_CODE"
BANK_ACCOUNT = "BANK_ACCOUNT"
BANK_ROUTING = "BANK_ROUTING"
NATIONAL_ID = "NATIONAL_ID"
TAX_ID = "TAX_ID"
PASSPORT = "PASSPORT"
DRIVER_LICENSE = "DRIVER_LICENSE"
DATE_OF_BIRTH = "DATE_OF_BIRTH"
MEDICAL_ID = "MEDICAL_ID"
INSURANCE_ID = "INSURANCE_ID"
IP_ADDRESS = "IP_ADDRESS"
MAC_ADDRESS = "MAC_ADDRESS"
URL_CREDENTIALS = "URL_CREDENTIALS"
CRYPTO = "CRYPTO"
API_KEY = "API_KEY"
PRIVATE_KEY = "PRIVATE_KEY"
PASSWORD = "PASSWORD"

NAMES = (PERSON, LOCATION, STREET_ADDRESS, ORGANIZATION)
SECRETS = (URL_CREDENTIALS, API_KEY, PRIVATE_KEY, PASSWORD)
IDENTIFIERS = (
    EMAIL_ADDRESS,
    PHONE_NUMBER,
    CREDIT_CARD,
    IBAN_CODE,
    BANK_ACCOUNT,
    BANK_ROUTING,
    NATIONAL_ID,
    TAX_ID,
    PASSPORT,
    DRIVER_LICENSE,
    DATE_OF_BIRTH,
    MEDICAL_ID,
    INSURANCE_ID,
    IP_ADDRESS,
    MAC_ADDRESS,
    CRYPTO,
)
ALL = (*NAMES, *IDENTIFIERS, *SECRETS)
DEFAULT = tuple(entity for entity in ALL if entity != ORGANIZATION)  # organisations only if asked for
PATTERNED = (*IDENTIFIERS, *SECRETS)  # found by their form rather than by a list of names


class Finding(NamedTuple):
    """A piece of personal data: text[start:end]. Findings of one text don't overlap."""

    start: int
    end: int
    entity: str
    score: float  # 0 to 1: how sure the recogniser is


def without_overlaps(findings: list[Finding]) -> list[Finding]:
    """Resolve overlaps: the surer one stays, of equally sure ones the longer; the rest of the loser stays too.

    What is left of a loser on either side is still personal data, so it is kept unless nothing but separators is in
    it; the caller trims. Result in order of the text.
    """
    kept: list[Finding] = []  # in order of the text, none within another
    for finding in sorted(findings, key=lambda f: (-f.score, f.start - f.end, f.start, f.entity)):
        first = bisect_right(kept, finding.start, key=attrgetter("end"))
        behind = bisect_left(kept, finding.end, lo=first, key=attrgetter("start"))
        edges = [finding.start, *(edge for other in kept[first:behind] for edge in other[:2]), finding.end]
        pieces = [
            finding._replace(start=a, end=b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b
        ]
        kept[first:behind] = sorted(kept[first:behind] + pieces)
    return kept
