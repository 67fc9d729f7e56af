"""E-mail addresses, telephone numbers, and URLs that carry credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator

import phonenumbers

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.labels import belongs_to_other, counts

_SIGN = r"(?:@|%40|&#0?64;|&#x40;|&commat;| @ )"  # as it is, in URLs, in HTML, with blanks
_SIGNS = ("@", "%40", "&#064;", "&#64;", "&#x40;", "&commat;")
_EMAIL = re.compile(
    rf"(?<![\w.+%-])[\w.!#$%'*+^~-]{{0,63}}[\w+-]{_SIGN}(?:[^\W_](?:[\w-]{{0,61}}[^\W_])?\.)+[^\W\d_]{{2,24}}(?![\w-])"
)
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s<>\"'`]+", re.IGNORECASE)
_USER_IN_URL = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@:\s]*:[^/@\s]+@", re.IGNORECASE)
_TOKEN_IN_URL = re.compile(
    r"[?&#;](?:[\w-]*(?:token|secret|passw(?:or)?d|api_?-?key|apikey|signature|sig|session_?id|auth|credential|jwt"
    r"|access_?key)[\w-]*|key|sid|pwd)=(?P<value>[^&\s#]{6,})",
    re.IGNORECASE,
)

# Forms of telephone numbers that are unambiguous; any other number needs a word such as "call" before it (labels).
_EXTENSION = r"(?:\s?(?:x|ext\.?|Durchwahl|-)\s?\d{1,5})?"
_TRUSTED = re.compile(
    r"(?=[\d+(])(?<![\w.,:/=+-])(?:"
    r"\+\d{1,3}[ .-]?(?:\(?\d{1,4}\)?[ ./-]?){2,6}\d{2,4}"  # +49 (0)30 1234-567
    r"|\(\+?\d{1,3}\) ?\d{2,4}(?:[ .-]?\d{2,4}){1,3}"  # (351) 912 345 678, (030) 123 4567
    r"|\(0\d{2,5}\) ?\d{3,8}(?:[ -]?\d{1,5}){0,2}"  # (05745) 862933
    r"|00[1-9]\d{0,2}[ .-](?:\(?\d{1,4}\)?[ ./-]?){2,5}\d{2,4}"  # 0049 30 1234567, 001-555-123-4567
    r"|(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[.-])\d{3}[.-]\d{4}"  # (555) 123-4567, 555.123.4567
    r"|1-8\d\d-\d{3}-\d{4}|[2-9]\d{2} [2-9]\d{2}-\d{4}"
    r"|0[1-9](?:[ .-]\d{2}){4}|0[67][ -]?[1-9]\d{7}"  # 01 23 45 67 89, 06-12345678
    r"|0\d{2} \d{4} \d{4}|0\d{3} \d{3} \d{4}|0\d{4} \d{6}|0\d{4} \d{3} ?\d{3}"  # Great Britain
    r"|0\d{2,4} ?[/-] ?\d{3,8}(?:[ -]?\d{1,4}){0,3}"  # 030/1234567, 0171-1234567
    r"|0\d{2,4} \d{5,8}|0\d{2,4} \d{3,4} \d{2,4}(?: \d{2,4})?"  # 0171 1234567
    r"|\d{2} ?9\d{4}-\d{4}|\(\d{2,3}\) ?\d{4,5}-\d{4}|0?\d{2} \d{4}-\d{4}"  # Brazil
    r")" + _EXTENSION + r"(?![\w]|[.,/:=-]\d|%)"
)
_GROUPED = re.compile(
    r"[26789](?<![\w.,:/=+-].)(?:(?<=[6789])\d{2} \d{3} \d{3}|(?<=[6789])\d{2} \d{2} \d{2} \d{2}|(?<=[29])\d{2} \d{3} \d{3}|(?<=9)\d \d{3} \d{2} \d{2})(?![\w]|[.,/:=-]\d| \d|\s?[%€$])"
)
_COMPACT = re.compile(
    r"\d(?<![\w.,:/=+-]\d)(?:(?<=0)[1-9]\d{8,10}|(?<=[679])\d{8}|(?<=[2-9])\d{9}|(?<=[1-9])[1-9]9\d{8})(?![\w]|[.,]\d|-\d)"
)
_SIGNATURE = re.compile(
    r"(?m)(?:^|[|,;] ?)(?:[TFMP]|Tel|Mob|Ph|Fax)[.:]? {1,2}(?P<number>\+?\(?\d[\d ()./-]{6,20}\d)(?!\w)"
)
_ENCODED = re.compile(r"%2B[1-9]\d{7,14}(?!\d)", re.IGNORECASE)  # ?tel=%2B49301234567
_INTERNATIONAL = re.compile(  # also in rows of a table: ann@acme.org,+49 30 1234567,10.3.4.5
    r"\+(?<=[,:;=|\"']\+)[1-9]\d{0,2}[ .-]?(?:\(?\d{1,4}\)?[ ./-]?){2,6}\d{2,4}(?![\w]|[.:=]\d)"
)
_PREPOSITION = re.compile(
    r"(?<!\w)(?:on|at|under|unter|auf|au|en el|al|no|pelo|ao)(?: der| die)?:? (?P<number>\(?\d[\d ()./-]{7,16}\d)(?![\w]|[.,/:=-]\d|\s?[%€$])"
)
# Countries in which people write the language.
_REGIONS = {
    "en": ("GB", "US", "IN", "AU"),
    "de": ("DE", "AT", "CH"),
    "fr": ("FR", "CA"),
    "es": ("ES", "MX", "CO", "AR"),
    "pt": ("PT", "BR"),
}
# anna [at] web [dot] de; anna at web dot com
_TLD = r"(?:com|org|net|edu|gov|info|eu|io|dev|app|de|at|ch|fr|be|ca|es|mx|pt|br|uk|us|au|nz|ie)"
_AT = r" ?[(\[{<](?:at|a|@|arroba|arobase)[)\]}>] ?"
_DOT = r"(?:\.| ?[(\[{](?:dot|punkt|point|punto|ponto)[)\]}] ?| (?:dot|punkt|point|punto|ponto) )"
_SPOKEN = re.compile(
    rf"(?<![\w.+-])[\w.+-]{{1,64}}(?:(?:{_DOT}[\w-]{{1,30}}){{0,3}}{_AT}[\w-]{{2,40}}(?:{_DOT}[\w-]{{2,20}}){{1,3}}"
    rf"|(?: dot [\w-]{{1,30}}){{0,3}} (?:at|arroba|arobase) [\w-]{{2,40}}(?: (?:dot|punkt|point|punto|ponto) [\w-]{{2,20}}){{0,2}} (?:dot|punkt|point|punto|ponto) {_TLD})(?![\w-])",
    re.IGNORECASE,
)
_SPOKEN_SIGN = re.compile(
    r"[(\[{<](?:at?|@|arroba|arobase)[)\]}>]|\b(?:at|arroba|arobase) [\w-]+ (?:dot|punkt|point|punto|ponto) \w"
)
# Anyone who knows the address can post there.
_WEBHOOK = re.compile(
    r"//(?:hooks\.slack\.com/(?:services|workflows)/\w|discord(?:app)?\.com/api/webhooks/\d|[\w.-]+\.webhook\.office\.com/webhook)"
)
_FEWEST = 7  # minimum digits of a telephone number
_DATE_LIKE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|\d{4}-\d{4}")


def find_contacts(clues: Clues) -> Iterator[Finding]:
    """E-mail addresses, telephone numbers, URLs with credentials."""
    text = clues.text
    if any(sign in text for sign in _SIGNS):
        for match in _EMAIL.finditer(text):
            yield Finding(match.start(), match.end(), e.EMAIL_ADDRESS, 1.0)
    if (not clues.words.isdisjoint(("at", "arroba", "arobase")) or "@" in text) and _SPOKEN_SIGN.search(
        clues.lower
    ):
        for match in _SPOKEN.finditer(text):
            yield Finding(match.start(), match.end(), e.EMAIL_ADDRESS, 0.9)
    if "://" in text:
        for match in _URL.finditer(text):
            url = match[0].rstrip(".,;:!?)]}'\"")
            if _USER_IN_URL.match(url) or _TOKEN_IN_URL.search(url) or _WEBHOOK.search(url):
                yield Finding(match.start(), match.start() + len(url), e.URL_CREDENTIALS, 1.0)
    if clues.digits >= _FEWEST:
        yield from _phones(clues)


def _phones(clues: Clues) -> Iterator[Finding]:
    text = clues.text
    for match in _TRUSTED.finditer(text):
        digits = re.sub(r"\D", "", re.sub(r"(?:x|ext).*", "", match[0]))
        if not 7 <= len(digits) <= 16 or _DATE_LIKE.fullmatch(match[0]):
            continue
        if match[0].startswith("+") or not (
            counts(clues, match.end()) or belongs_to_other(clues, match.start(), match.end())
        ):
            yield Finding(match.start(), match.end(), e.PHONE_NUMBER, 0.8)
    for match in _SIGNATURE.finditer(text):
        if 9 <= sum(c.isdigit() for c in match["number"]) <= 15:
            yield Finding(*match.span("number"), e.PHONE_NUMBER, 0.8)
    for match in _ENCODED.finditer(text):
        yield Finding(match.start(), match.end(), e.PHONE_NUMBER, 0.8)
    for match in _INTERNATIONAL.finditer(text):
        if 8 <= sum(c.isdigit() for c in match[0]) <= 15:
            yield Finding(match.start(), match.end(), e.PHONE_NUMBER, 0.8)
    yield from _compact(clues)
    yield from _behind_prepositions(clues)
    region = {"es": "ES", "pt": "PT"}.get(clues.language)
    if region is not None:  # nine digits in threes could be any number, so it must exist
        for match in _GROUPED.finditer(text):
            if _exists_in(region, match[0]):
                yield Finding(match.start(), match.end(), e.PHONE_NUMBER, 0.7)


def _behind_prepositions(clues: Clues) -> Iterator[Finding]:
    """ "estoy en el 609-208-880", "she's on 0171 1234567": a number that exists in a country of the language."""
    for match in _PREPOSITION.finditer(clues.text):
        start, end = match.span("number")
        if not 9 <= sum(c.isdigit() for c in match["number"]) <= 13 or _DATE_LIKE.fullmatch(match["number"]):
            continue
        if _exists(match["number"], clues.language) and not (
            counts(clues, end) or belongs_to_other(clues, start, end)
        ):
            yield Finding(start, end, e.PHONE_NUMBER, 0.6)


def _exists(number: str, language: str) -> bool:
    """Whether the number is valid in a country where the language is spoken."""
    return any(_exists_in(region, number) for region in _REGIONS[language])


def _exists_in(region: str, number: str) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(number, region))
    except phonenumbers.NumberParseException:
        return False  # an international call to a nonexistent country: 0011 990 ...


def _compact(clues: Clues) -> Iterator[Finding]:
    """Numbers without separators, valid in the language's country: with a leading zero, or next to an e-mail."""
    for match in _COMPACT.finditer(clues.text):
        near = clues.text[max(0, match.start() - 60) : match.end() + 60]
        if not match[0].startswith("0") and "@" not in near:
            continue
        if (
            _exists(match[0], clues.language)
            and not counts(clues, match.end())
            and not belongs_to_other(clues, match.start(), match.end())
        ):
            yield Finding(match.start(), match.end(), e.PHONE_NUMBER, 0.6)
