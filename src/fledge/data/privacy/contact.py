"""E-mail addresses, telephone numbers, and URLs that carry credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator

import phonenumbers

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.labels import belongs_to_other, counts
from fledge.data.privacy.word_lists import read_words

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
_EXTENSION = r"(?:\s?(?:x|ext\.?|Durchwahl|-)\s?\d{1,5})?(?![\w]|[.,/:=-]\d|%)"
_INTERNATIONAL = re.compile(  # +49 (0)30 1234-567, 0049 30 1234567; also ?tel=%2B4930..., ann@acme.org,+49 30...
    r"(?<![\w.+-])(?:\+|%2B|00(?=[1-9]\d{0,2}[ .-]))[1-9]\d{0,2}[ .-]?(?:\(?\d{1,4}\)?[ ./-]?){2,6}\d{2,4}(?:\s?(?:x|ext\.?)\s?\d{1,5})?(?![\w]|[.:=]\d)"
)
_TRUSTED = re.compile(
    r"(?=[\d(])(?<![\w.,:/=+-])(?:"
    r"\(\+?\d{1,3}\) ?\d{2,4}(?:[ .-]?\d{2,4}){1,3}"  # (351) 912 345 678, (030) 123 4567
    r"|\(0\d{2,5}\) ?\d{3,8}(?:[ -]?\d{1,5}){0,2}"  # (05745) 862933
    r"|(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[.-])\d{3}[.-]\d{4}"  # (555) 123-4567, 555.123.4567
    r"|1-8\d\d-\d{3}-\d{4}|[2-9]\d{2} [2-9]\d{2}-\d{4}"
    r"|0[1-9](?:[ .-]\d{2}){4}|0[67][ -]?[1-9]\d{7}"  # 01 23 45 67 89, 06-12345678
    r"|0\d{2} \d{4} \d{4}|0\d{3} \d{3} \d{4}|0\d{4} \d{6}|0\d{4} \d{3} ?\d{3}"  # Great Britain
    r"|0\d{2,4} ?[/-] ?\d{3,8}(?:[ -]?\d{1,4}){0,3}"  # 030/1234567, 0171-1234567
    r"|0\d{2,4} \d{5,8}|0\d{2,4} \d{3,4} \d{2,4}(?: \d{2,4})?"  # 0171 1234567
    r"|\d{2} ?9\d{4}-\d{4}|\(\d{2,3}\) ?\d{4,5}-\d{4}|0?\d{2} \d{4}-\d{4}"  # Brazil
    r")" + _EXTENSION
)
# Other numbers count if they exist in a country of the language and begin with a zero, stand beside an e-mail address,
# or after such a word: "estoy en el 609-208-880", "she's on 0171 1234567", "T 212 555 7834".
_PLAIN = re.compile(
    r"(?<![\w.,:/=+-])(?<!\+\d )(?<!\+\d\d )(?<!\+\d\d\d )\(?\d[\d ()./-]{6,16}\d(?![\w]|[.,/:=-]\d|\s?[%€$])"
)
_BEFORE = re.compile(
    r"(?<!\w)(?:(?:on|at|under|unter|auf|au|en el|al|no|pelo|ao)(?: der| die)?:?|[tfmp][.:]?|tel|mob|ph|fax) {1,2}$"
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
_DOT = r"(?:\.| ?[(\[{](?:dot|punkt|point|punto|ponto)[)\]}] ?| (?:dot|punkt|point|punto|ponto) )"
_AT = r"(?: ?[(\[{<](?:at|a|@|arroba|arobase)[)\]}>] ?| (?:at|arroba|arobase) )"
_SPOKEN = re.compile(
    rf"(?<![\w.+-])[\w.+-]{{1,64}}(?:{_DOT}[\w-]{{1,30}}){{0,3}}{_AT}[\w-]{{2,40}}(?:{_DOT}[\w-]{{2,20}}){{1,3}}(?![\w-])",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"[(\[{<](?:at?|@|arroba|arobase)[)\]}>]", re.IGNORECASE)
_SPOKEN_DOTS = frozenset(("dot", "punkt", "point", "punto", "ponto"))
_TLDS = read_words("top_level_domains")
# Anyone who knows the address can post there.
_WEBHOOK = re.compile(
    r"//(?:hooks\.slack\.com/(?:services|workflows)/\w|discord(?:app)?\.com/api/webhooks/\d|[\w.-]+\.webhook\.office\.com/webhook)"
)
_FEWEST = 7  # minimum digits of a telephone number


def find_contacts(clues: Clues) -> Iterator[Finding]:
    """E-mail addresses, telephone numbers, URLs with credentials."""
    text = clues.text
    if any(sign in text for sign in _SIGNS):
        for match in _EMAIL.finditer(text):
            yield Finding(match.start(), match.end(), e.EMAIL_ADDRESS, 1.0)
    if _BRACKETED.search(text) or not clues.words.isdisjoint(_SPOKEN_DOTS):
        for match in _SPOKEN.finditer(text):
            *_, before, last = re.split(r"[\W_]+", match[0].lower())
            if _BRACKETED.search(match[0]) or (before in _SPOKEN_DOTS and last in _TLDS):
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
    for match in _INTERNATIONAL.finditer(text):
        if 8 <= sum(c.isdigit() for c in match[0]) <= 19:
            yield Finding(match.start(), match.end(), e.PHONE_NUMBER, 0.8)
    for match in _TRUSTED.finditer(text):
        if not _is_another(clues, *match.span()):
            yield Finding(match.start(), match.end(), e.PHONE_NUMBER, 0.8)
    for match in _PLAIN.finditer(text):
        start, end = match.span()
        if not 9 <= sum(map(str.isdigit, match[0])) <= 13:
            continue
        evident = match[0][0] in "0(" or "@" in text[max(0, start - 60) : end + 60]
        evident = evident or _BEFORE.search(clues.lower, max(0, start - 16), start) is not None
        if evident and _exists(match[0], clues.language) and not _is_another(clues, start, end):
            yield Finding(start, end, e.PHONE_NUMBER, 0.6)


def _is_another(clues: Clues, start: int, end: int) -> bool:
    """True if the words around a number mark it as a count or an order number."""
    return counts(clues, end) or belongs_to_other(clues, start, end)


def _exists(number: str, language: str) -> bool:
    """True if the number is valid in a country where the language is spoken."""
    for region in _REGIONS[language]:
        try:
            if phonenumbers.is_valid_number(phonenumbers.parse(number, region)):
                return True
        except phonenumbers.NumberParseException:
            continue  # an international call to a nonexistent country: 0011 990 ...
    return False
