"""The entities the filter supports, in Presidio's spelling if Presidio has one."""

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
VEHICLE_ID = "VEHICLE_ID"  # number plates, VINs
USERNAME = "USERNAME"  # also handles and links to profiles
API_KEY = "API_KEY"
PRIVATE_KEY = "PRIVATE_KEY"
PASSWORD = "PASSWORD"

NAMES = (PERSON, LOCATION, STREET_ADDRESS, ORGANIZATION)
SECRETS = (URL_CREDENTIALS, API_KEY, PRIVATE_KEY, PASSWORD)
IDENTIFIERS = (
    EMAIL_ADDRESS, PHONE_NUMBER, CREDIT_CARD, IBAN_CODE, BANK_ACCOUNT, BANK_ROUTING, NATIONAL_ID, TAX_ID, PASSPORT,
    DRIVER_LICENSE, DATE_OF_BIRTH, MEDICAL_ID, INSURANCE_ID, IP_ADDRESS, MAC_ADDRESS, CRYPTO, VEHICLE_ID, USERNAME,
)  # fmt: skip
ALL = (*NAMES, *IDENTIFIERS, *SECRETS)
DEFAULT = tuple(entity for entity in ALL if entity != ORGANIZATION)  # organisations only if requested
PATTERNED = (*IDENTIFIERS, *SECRETS)  # found by their form rather than by lists of names


WEAK = 0.3  # the score of a name or town that counts only beside other personal data of the conversation


class Finding(NamedTuple):
    """A piece of personal data: text[start:end]. Findings of one text don't overlap."""

    start: int
    end: int
    entity: str
    score: float  # 0 to 1: how sure the recogniser is


def without_overlaps(findings: list[Finding]) -> list[Finding]:
    """Resolve overlaps: the more certain finding wins, or else the longer; the rest of the loser is kept, too.

    What is left of a loser on either side is still personal data, so it is kept unless it consists of separators only;
    the caller trims. Sorted by position.
    """
    disjoint: list[Finding] = []  # sorted by position, disjoint
    for finding in sorted(findings, key=lambda f: (-f.score, f.start - f.end, f.start, f.entity)):
        first = bisect_right(disjoint, finding.start, key=attrgetter("end"))
        last = bisect_left(disjoint, finding.end, lo=first, key=attrgetter("start"))
        edges = [finding.start, *(edge for other in disjoint[first:last] for edge in other[:2]), finding.end]
        pieces = [
            finding._replace(start=a, end=b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b
        ]
        disjoint[first:last] = sorted(disjoint[first:last] + pieces)
    return disjoint
