"""More identifiers of states whose form or check digit proves them without a word beside them.

Each row: entity, regular expression, check on the letters and digits (None: the form is enough), score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stdnum import luhn
from stdnum.ar import cuit
from stdnum.br import cnpj, cpf
from stdnum.de import idnr
from stdnum.fi import hetu

from fledge.data.privacy import entities as e

Check = Callable[[str], bool]


def stdnum_check(module: Any) -> Check:
    """The check of a module of python-stdnum."""
    return lambda value: bool(module.is_valid(value))


def _compact_cpf(value: str) -> bool:
    """A CPF without marks; telephones of eleven digits have a 9 in the third place."""
    return value[2] != "9" and len(set(value)) > 3 and bool(cpf.is_valid(value))


def _birth_and_luhn(value: str) -> bool:
    """Sweden: a date, a serial number and Luhn's digit over the last ten."""
    return bool(luhn.is_valid(value[-10:]))


def _is_vat_of_germany(value: str) -> bool:
    return value[2] != "0"


_DAY = r"(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
MORE_FORMS: tuple[tuple[str, str, Check | None, float], ...] = (
    (e.NATIONAL_ID, r"\d{1,2}\.\d{3}\.\d{3}-[\dKk]", None, 0.85),  # Chile, RUT
    (e.TAX_ID, r"(?:2[0347]|3[034])-\d{8}-\d", stdnum_check(cuit), 0.9),  # Argentina, CUIT
    (e.NATIONAL_ID, r"\d{3} \d{3} \d{3}[ -]\d{2}", stdnum_check(cpf), 0.9),  # Brazil, CPF with spaces
    (e.NATIONAL_ID, r"\d{9}-\d{2}", stdnum_check(cpf), 0.9),
    (e.NATIONAL_ID, r"\d{11}", _compact_cpf, 0.55),
    (e.TAX_ID, r"\d{8}/?000\d-?\d{2}", stdnum_check(cnpj), 0.93),  # Brazil, CNPJ without points
    (e.NATIONAL_ID, r"\d{8} ?\d ?[A-Z]{2}\d", None, 0.85),  # Portugal, citizen card
    (e.TAX_ID, r"\d{2}-\d{3}-\d{3}-\d{3}|\d{2}/\d{3}/\d{3}/\d{3}", stdnum_check(idnr), 0.85),  # Germany, in other marks
    (e.TAX_ID, r"\d{2,3}/\d{3}/\d{5}", None, 0.75),  # Germany, Steuernummer
    (e.TAX_ID, r"DE ?[1-9]\d{2} ?\d{3} ?\d{3}", _is_vat_of_germany, 0.85),  # value added tax
    (e.TAX_ID, r"ATU ?\d{8}|NL ?\d{9} ?B ?\d{2}|CHE-\d{3}\.\d{3}\.\d{3}|FR ?\d{2} ?\d{3} ?\d{3} ?\d{3}", None, 0.85),
    (e.NATIONAL_ID, rf"(?:19|20)?\d{{2}}{_DAY}[-+]\d{{4}}", _birth_and_luhn, 0.8),  # Sweden
    (e.NATIONAL_ID, r"(?:0[1-9]|[12]\d|3[01])(?:0[1-9]|1[0-2])\d{2}[-+A]\d{3}[0-9A-Y]", stdnum_check(hetu), 0.9),  # Finland
    (e.NATIONAL_ID, r"[A-Z]{6}\d{8}[HM]\d{3}", None, 0.9),  # Mexico, voter's key
)  # fmt: skip
