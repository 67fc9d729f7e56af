"""Identifiers recognised by their form: mostly numbers with a check digit, in any context.

Each row: entity, regular expression, check on the match's letters and digits (None: the form is enough), score.
Checks are python-stdnum's; a lookalike number fails at least nine times out of ten.
"""

from __future__ import annotations

import importlib
import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stdnum import iban, luhn

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.reserved import is_reserved_ip

Check = Callable[[str], bool]


class Form(NamedTuple):
    """One row of the table."""

    entity: str
    regex: re.Pattern[str]
    check: Check | None
    score: float


def _iban_end(value: str) -> int:
    """The length of the IBAN within a match, since words in capitals may follow it; 0: none."""
    end = len(value)
    while end >= 15:
        if iban.is_valid(value[:end], check_country=False):
            return end
        end = max(value.rfind(" ", 0, end), value.rfind("-", 0, end))
    return 0


def _is_card(value: str) -> bool:
    return 13 <= len(value) <= 19 and len(set(value)) > 1 and bool(luhn.is_valid(value))


def _stdnum(name: str) -> Check:
    """The check of a python-stdnum module, such as "fr.nir"."""
    module = importlib.import_module(f"stdnum.{name}")
    return lambda value: bool(module.is_valid(value))


_VIN_DIGITS = str.maketrans("ABCDEFGHJKLMNPRSTUVWXYZ", "12345678123457923456789")


def _is_vin(value: str) -> bool:
    """True if the ninth character is the check digit (ISO 3779, as in North America and China)."""
    if value.isdigit() or value.isalpha():
        return False
    digits = [int(c.translate(_VIN_DIGITS)) for c in value]
    weights = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
    return value[8] == "0123456789X"[sum(a * b for a, b in zip(digits, weights, strict=True)) % 11]


def _form(entity: str, regex: str, check: Check | None, score: float) -> Form:
    return Form(entity, re.compile(rf"(?:{regex})(?![\w]|[.-]\d)"), check, score)


# Where a number may begin: up to six capitals, then digits, nine letters and digits or more in all (a RUT: eight).
# (Here and below, what must not precede a match is checked after its first character, so that the search can jump to
# the next possible first character.)
_BEGIN = re.compile(
    r"[\dA-ZÑ&](?<![\w.-].)(?:(?<=\d)|(?=[A-ZÑ&]{0,5}[ -]?\d))(?=(?:[ ./-]{0,3}[\dA-ZÑ&]){7})"
)
# Rows that are tried there: entity, form, check, score. Numbers without a check digit, and with one of a single digit,
# are left to the words before them (labels, countries).
_NUMBERS = (
    _form(e.CREDIT_CARD, r"[2-6]\d{3}( {0,2}|[.-])\d{4}\1\d{4}\1\d{1,7}|3[47]\d{2}( {0,2}|[.-])\d{6}\2\d{5}|3[0689]\d{2}( {0,2}|[.-])\d{6}\3\d{4}", _is_card, 0.88),
    _form(e.CREDIT_CARD, r"[2-6]\d{12,18}|[3-6]\d{3}( ?)\d{4}\1\d{4}\1\d{4}\1\d{3}|[2-6]( )\d(?:\2\d){11,17}", _is_card, 0.88),
    _form(e.VEHICLE_ID, r"[A-HJ-NPR-Z0-9]{17}", _is_vin, 0.8),
    _form(e.NATIONAL_ID, r"(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}", None, 0.85),  # US SSN
    _form(e.NATIONAL_ID, r"(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z]{2}[ -]?\d{2}[ -]?\d{2}[ -]?\d{2}[ -]?[A-D]", None, 0.85),  # UK
    _form(e.NATIONAL_ID, r"[12] ?\d{2} ?\d{2} ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}", _stdnum("fr.nir"), 0.95),  # France
    _form(e.NATIONAL_ID, r"\d{2}([. ]?)\d{3}\1\d{3}[ -]?[A-HJ-NP-TV-Z]", _stdnum("es.dni"), 0.95),  # Spain
    _form(e.NATIONAL_ID, r"[XYZ][ -]?\d{7}[ -]?[A-HJ-NP-TV-Z]", _stdnum("es.nie"), 0.95),  # Spain, foreigners
    _form(e.NATIONAL_ID, r"\d{3}\.\d{3}\.\d{3}-\d{2}", _stdnum("br.cpf"), 0.95),  # Brazil
    _form(e.TAX_ID, r"\d{2}\.\d{3}\.\d{3}/\d{4}-\d{2}", _stdnum("br.cnpj"), 0.95),  # Brazil, firms
    _form(e.NATIONAL_ID, r"[A-Z]{4}\d{6}[HMX][A-Z]{5}[A-Z0-9]\d", _stdnum("mx.curp"), 0.95),  # Mexico
    _form(e.TAX_ID, r"[A-ZÑ&]{3,4}\d{6}[A-Z0-9]{3}", _stdnum("mx.rfc"), 0.9),  # Mexico
    _form(e.NATIONAL_ID, r"[A-Z]{6}[\dA-Z]{2}[A-Z][\dA-Z]{2}[A-Z][\dA-Z]{3}[A-Z]", _stdnum("it.codicefiscale"), 0.95),  # Italy
    _form(e.NATIONAL_ID, r"756\.\d{4}\.\d{4}\.\d{2}", _stdnum("ch.ssn"), 0.95),  # Switzerland
    _form(e.NATIONAL_ID, r"[1-9]\d{16}[\dX]", _stdnum("cn.ric"), 0.95),  # China
    _form(e.NATIONAL_ID, r"\d{1,2}\.\d{3}\.\d{3}-[\dKk]", _stdnum("cl.rut"), 0.9),  # Chile
    _form(e.TAX_ID, r"(?:2[0347]|3[034])-\d{8}-\d", _stdnum("ar.cuit"), 0.9),  # Argentina
)  # fmt: skip
_MACS = re.compile(
    r"[0-9A-Fa-f](?<![\w.-].)(?:[0-9A-Fa-f]([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}|[0-9A-Fa-f]{3}\.[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4})(?![\w]|[.-]\d)"
)
_IBAN = re.compile(r"[A-Z](?<![\w.-].)[A-Z]\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?(?!\w)")
_IBAN_REST = re.compile(  # in lower case, from the first digit on
    r"\d(?<=(?<![\w.-])[a-z]{2}\d)\d(?:[a-z0-9]{11,30}|(?: [a-z0-9]{4}){3,7}(?: (?=[a-z]{0,2}\d)[a-z0-9]{1,3})?)(?!\w)"
)
_WALLETS = re.compile(
    r"(?<![\w/-])(?:(?:bc1|tb1|ltc1)[02-9ac-hj-np-z]{11,87}|0x[0-9a-fA-F]{40}|[13LM][1-9A-HJ-NP-Za-km-z]{25,34}"
    r"|[TD][1-9A-HJ-NP-Za-km-z]{33}|addr1[02-9ac-hj-np-z]{50,100}|cosmos1[02-9ac-hj-np-z]{38}|r[1-9A-HJ-NP-Za-km-z]{24,34}|[48][0-9AB][1-9A-HJ-NP-Za-km-z]{93})(?!\w)"
)
_IPV4 = re.compile(r"\d(?<![\w.:]\d)\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:%\w+)?(?![\w:])")
# "version 1.2.3.4", "v1.2.3.4", "build 10.0.1.2": four numbers that aren't an address.
_VERSION = re.compile(
    r"(?:\bv|\bver|versions?|versión|versão|release|build|firmware|driver|patch|update|upgrade|section|kapitel"
    r"|chapter|abschnitt|==|>=|<=|~=|\bsdk|runtime|assembly\w*)(?![^\W_])(?:[^.!?\n]|\.(?=\S)){0,50}$"
    r"|(?<![^\W_])(?:python|java|node(?:\.?js)?|php|ruby|cuda|ubuntu|debian|ios|android|macos|windows|firefox|nginx|postgres\w*|mysql|excel|chrome|kernel)(?![^\W_])[^.!?\n\d,;]{0,20}$"
)

_LONG = re.compile(r"[0-9A-Za-z]{14}")  # no wallet is shorter
_NETWORKED = re.compile(r"/(?:[12]?\d|3[0-2])(?!\d)|:\d{2,5}(?!\d)")  # 10.1.2.3/24, 10.1.2.3:8080


def find_forms(clues: Clues) -> Iterator[Finding]:
    """Identifiers by form."""
    if not clues.digits:
        return
    text = clues.text
    for begin in _BEGIN.finditer(text):
        for entity, regex, check, score in _NUMBERS:
            match = regex.match(text, begin.start())
            if match and (check is None or check(re.sub(r"[^0-9A-Za-z]", "", match[0]))):
                yield Finding(match.start(), match.end(), entity, score)
    if text.count(":") >= 5 or text.count("-") >= 5 or text.count(".") >= 2:
        for match in _MACS.finditer(text):
            yield Finding(match.start(), match.end(), e.MAC_ADDRESS, 0.9)
    yield from _addresses(clues)
    for regex, before in ((_IBAN, 0), (_IBAN_REST, 2)):
        for match in regex.finditer(text):
            start = match.start() - before
            size = _iban_end(text[start : match.end()])
            if size:
                yield Finding(start, start + size, e.IBAN_CODE, 1.0)
    yield from _wallets(clues)


def _wallets(clues: Clues) -> Iterator[Finding]:
    text = clues.text
    if _LONG.search(text):
        for match in _WALLETS.finditer(text):
            if _looks_like_wallet(match[0]):
                yield Finding(match.start(), match.end(), e.CRYPTO, 0.9)


def _addresses(clues: Clues) -> Iterator[Finding]:
    text = clues.text
    if text.count(".") >= 3:
        for match in _IPV4.finditer(text):
            address = _ip(match[0])
            networked = _NETWORKED.match(text, match.end()) is not None
            before = clues.lower[max(0, match.start() - 70) : match.start()]
            if address is not None and (networked or not _VERSION.search(before)):
                yield Finding(match.start(), match.end(), e.IP_ADDRESS, 0.9)
    if text.count(":") >= 2:
        for match in _IPV6.finditer(text):
            address = _ip(match[0].split("%")[0])
            if address is not None and (sum(c.isalnum() for c in match[0]) >= 4):
                yield Finding(match.start(), match.end(), e.IP_ADDRESS, 0.9)


def _ip(value: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, unless it isn't anyone's: unspecified, loopback, a netmask, or reserved for documentation."""
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return None
    unassigned = (
        address.is_unspecified or address.is_loopback or value.startswith("255.") or is_reserved_ip(address)
    )
    return None if unassigned else address


def _looks_like_wallet(value: str) -> bool:
    """Base58 and hexadecimal wallets mix letters and digits; an all-lower-case word or a plain number isn't one."""
    if value.startswith(("bc1", "tb1", "ltc1", "0x", "addr1", "cosmos1")):
        return len(set(value[3:])) > 5
    digits = sum(character.isdigit() for character in value)
    return digits >= 2 and any(c.isupper() for c in value) and any(c.islower() for c in value)
