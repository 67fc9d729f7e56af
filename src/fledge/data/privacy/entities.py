"""The entities the filter knows, in Presidio's spelling where Presidio has one."""

from __future__ import annotations

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
    if len(findings) < 2:
        return findings
    kept: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (-f.score, f.start - f.end, f.start, f.entity)):
        pieces = [(finding.start, finding.end)]
        for other in kept:
            pieces = [piece for span in pieces for piece in _minus(span, (other.start, other.end))]
        kept += [Finding(start, end, finding.entity, finding.score) for start, end in pieces]
    return sorted(kept)


def _minus(span: tuple[int, int], taken: tuple[int, int]) -> list[tuple[int, int]]:
    (start, end), (low, high) = span, taken
    if high <= start or end <= low:
        return [span]
    return [piece for piece in ((start, low), (high, end)) if piece[0] < piece[1]]
