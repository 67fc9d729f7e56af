"""Presidio's recognisers of countries' identifiers, each where one of its own words stands beside the number.

Without such a word most of them match any number of the right length. ("TC kimlik no 10000000146", "plaka 34 ABC 1234")
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.word_lists import read_words

_RECOGNIZERS = {
    e.NATIONAL_ID: "SgFin InAadhaar InVoter ItFiscalCode ItIdentityCard PlPesel FiPersonalIdentityCode KrRrn KrFrn SePersonnummer ThTnin"
    " TrNationalId ZaIdNumber NgNin CaSin DeIdCard DeSocialSecurity PhUmid",
    e.TAX_ID: "AuAbn AuAcn AuTfn InPan InGstin KrBrn SgUen SeOrganisationsnummer ZaIncomeTaxNumber ZaVatNumber PhTin",
    e.PASSPORT: "InPassport ItPassport KrPassport PhPassport ZaPassport DePassport EsPassport UkPassport",
    e.DRIVER_LICENSE: "ItDriverLicense KrDriverLicense ZaDriverLicense DeFuehrerschein UkDrivingLicence",
    e.MEDICAL_ID: "AuMedicare UsMbi UsNpi DeLanr",
    e.INSURANCE_ID: "DeHealthInsurance",
    e.VEHICLE_ID: "InVehicleRegistration DeKfz UkVehicleRegistration TrLicensePlate ZaLicensePlate NgVehicleRegistration",
    e.PHONE_NUMBER: "ZaMobileNumber ZaTelephoneNumber",
}
_ALSO = {  # words that Presidio lacks
    "TrNationalId": ["kimlik"],
    "ZaIdNumber": ["sa id", "rsa id"],
    "UkVehicleRegistration": ["plate", "plates"],
}
_BEFORE, _AFTER = 50, 20  # characters around a number in which its word is searched for
_VAGUE = read_words("vague_words")
_WORD = re.compile(r"[^\W_]+")


def find_by_country(clues: Clues) -> Iterator[Finding]:
    """Identifiers that Presidio's recognisers of single countries know."""
    if not clues.digits:
        return
    for word in clues.words & _by_word().keys():
        for recognizer, entity, near in _by_word()[word]:
            for result in recognizer.analyze(clues.text, recognizer.supported_entities):
                around = clues.lower[max(0, result.start - _BEFORE) : result.end + _AFTER]
                digits = sum(map(str.isdigit, clues.text[result.start : result.end]))
                if result.score > 0 and digits >= 2 and near.search(around):
                    yield Finding(result.start, result.end, entity, 0.7)


@cache
def _by_word() -> dict[str, list[tuple[Any, str, re.Pattern[str]]]]:
    """The recognisers by the first words of their own context words."""
    with without_models():
        from presidio_analyzer import predefined_recognizers
    by_word: dict[str, list[tuple[Any, str, re.Pattern[str]]]] = {}
    for entity, names in _RECOGNIZERS.items():
        for name in names.split():
            recognizer = getattr(predefined_recognizers, f"{name}Recognizer")()
            phrases = [
                phrase.lower()
                for phrase in [*recognizer.context, *_ALSO.get(name, ())]
                if phrase.lower() not in _VAGUE and len(phrase) > 2
            ]
            near = re.compile(rf"(?<![^\W_])(?:{'|'.join(map(re.escape, phrases))})(?![^\W_])")
            for word in {_WORD.findall(phrase)[0] for phrase in phrases if _WORD.search(phrase)}:
                by_word.setdefault(word, []).append((recognizer, entity, near))
    return by_word


@contextmanager
def without_models() -> Iterator[None]:
    """Imports of Presidio without torch and transformers, which its spaCy imports if it can: 4 s that patterns don't need."""
    hidden = {name: sys.modules.pop(name, None) for name in ("torch", "transformers")}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: not importable
    try:
        yield
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
