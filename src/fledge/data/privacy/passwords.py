"""Passwords and PINs: what follows a word such as "password", and what looks like one in a sentence that has such a word.

DB_PASS=Xy12-3     the wifi at the cabin is Futebol.KxeK     curl -u anna:Xy12-3     PIN 4711
I always use Xy12-3qT for that password        das WLAN, also Sommer-Tisch-402, läuft        le mdp ? Azerty2024!

After "password is" nearly any word with a digit or a mark is one. Elsewhere in the sentence it must mix capitals, small
letters and digits as no word does, or hold a digit and a mark; names in code, versions, files and order numbers don't
count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.labels import belongs_to_other
from fledge.data.privacy.word_lists import one_of, read_patterns, read_sections

_LISTS, _P = read_sections("password_words"), read_patterns("password_words")
_SURE = _LISTS["passwords"]
_SPEAKS, _HINTS = _SURE | _LISTS["ambiguous"], _LISTS["hints"]
_NEAR, _NEARER = 70, 40  # characters between the password and a word that means one, or that hints at one
_WORD = re.compile(r"[^\W_]+")
_ANY = one_of(sorted(_SPEAKS | _HINTS, key=len, reverse=True))
_LINK = (
    r"[:=]{1,2}|=>|->|→|['’]s\b|\s(?=[\"'`«])"
    r"|\b(?:is|was|are|to|ist|lautet|war|bleibt|auf|est|était|c['’]est|es|era|é|a|à|sigue|reste|continua)\b:?"
)
_TIGHT = re.compile(  # "senha provisória:", "password for the wifi is": up to six words before the link
    rf"(?<![^\W_])(?P<label>{_ANY})(?=(?:_\w+)?(?![^\W_])[\"']?\]?(?:\s[^\s:=\"'`.!?]{{1,15}}){{0,6}}?"
    rf"\s*(?P<link>{_LINK})(?:\s(?:{_P['still']})\b){{0,2}}:?\s*(?P<quote>[\"'`«“]?)\s?(?P<value>[^\s\"'`«»<“”][^\s\"'`«»“”]{{3,63}}))"
)
_VALUE = r"(?P<value>[^\s\"'`«»<(|/][^\s\"'`«»|]{4,63})"
_BESIDE = (  # "default password (Xy12-345)", "user anna, Xy12-3", "ann@acme.org / Xy12-3", "I use Xy12-345 as my password"
    re.compile(rf"(?<![^\W_])(?:{one_of(_SURE)}|mot de passe|palavra-passe)\s\(?{_VALUE}"),
    re.compile(
        rf"(?<![^\W_])(?:{_P['user']})\s?[:=]?\s?[\w.@+-]{{2,40}}(?:\s?[,;/|]\s?|\s(?:{_P['and']})\s){_VALUE}"
    ),
    re.compile(rf"@[\w.-]+\.\w{{2,24}} ?[/|] ?{_VALUE}"),
    re.compile(rf"(?<![^\W_])(?:{_P['codes']})(?::|\s(?:{_P['are']}))?\s{_VALUE}"),
    re.compile(rf"(?<!\S){_VALUE}[\"']? (?:as|als|comme|como) (?:\w{{1,7}} ){{0,2}}(?:{_ANY})(?!\w)"),
)
_TECHNICAL = re.compile(
    r"(?:sha|md|base|utf|aes|rsa|oauth|http|ipv|win|v|php|mysql|sql|py|wpa)\W?\d\w*|\d+\W?\w+|\w+\d\.\w+",
    re.IGNORECASE,
)
_MARKS = re.compile(r"[*!#$&?^~]")  # which addresses don't have
_ON_COMMAND_LINE = re.compile(
    r"(?<![\w-])(?:(?:curl|wget|https?)\s[^\n]{0,120}?(?:-u|--user)[ =][\"']?[\w.@\\-]{1,64}:"
    r"|sshpass -p ?|mysql\w{0,5}\s[^\n|;]{0,80}?-p|--pass(?:word|wd|phrase)?[ =])[\"']?(?P<value>[^\s\"'`<>$|;{}]{4,64})"
)
_PIN = re.compile(
    r"(?<![^\W_])(?:pin|(?:tresor|tür)-?code|code(?= d))(?:[ -]?(?:code|number|nummer))?(?:[ '’](?!to\b|as\b|on\b)[^\W\d_]{1,12}){0,5}?"
    r":? ?#?(?P<value>\d{4,8})(?![\w.,:/-]*\d| (?:to|as|on)\b)"
)
_CODE = re.compile(  # "= input(", "= os.environ[", ": str", "= {{ secret }}"
    r"[A-Za-z_][\w.]*[(\[][\w., =]*[)\]]?:?$|\$?\{|(?:str|string|int|none|null|true|false|os|self|varchar)\b"
    r"|(?:https?|file)://|//|%[({s]",
    re.IGNORECASE,
)
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")  # "config.password"
_OBJECTS = read_sections("field_keys")["objects"]
_NOT_ONE = frozenset(("password", "passwort", "contraseña", "string", "kennwort", "username", "undefined"))
_UNITS = re.compile(r"[\d.,:]+[A-Za-z]{0,4}(?:/s)?|\d+x\d+|802\.\w+|[vV]\d[\w.]*")

_TOKEN = re.compile(r"(?<![^\s\"'`«“„(\[:=])[^\s\"'`«»<>“”„()\[\]{}=/\\,;|]{6,64}(?![^\s\"'`»”“.,;:!?)\]|])")
_END = re.compile(r"[.!?]\s+[A-ZÀ-Þ¿¡]|\n\s*\n|\n[-*•]")
_LOOKS = (
    re.compile(r"(?=.*[^\W\d_])(?=.*\d).*[!#$%&*+?^~@].*"),  # Sommer2024!, hallo_42#
    re.compile(
        r"[^\W\d_]{3,}(?:-[^\W\d_]{3,})+-\d{2,4}|(?=.*[A-Z].*\d)[^\W\d_]{3,}-\d{2,4}[^\W\d_]*"
    ),  # rot-tisch-402
    re.compile(r"(?=.*[a-zß-ÿ])(?=.*[A-ZÀ-Þ])(?=.*\d)[\w.-]{8,}"),  # bLUMEN_12, xY7qPw2
    re.compile(r"[^\W\d_]{4,}\.(?=\w*[a-zß-ÿ][A-Z]|\w*[A-Z]{2})\w{4,8}"),  # tisch.KxeK
)
_LOOKS_LIKE_CODE = (
    re.compile(r"[A-ZÀ-Þ]?[a-zß-ÿ]+\d+|[A-Z]?[a-z]+[\d.]+[A-Z]*"),  # Windows11, Ubuntu22.04LTS
    re.compile(r"(?:[A-Z]?[a-z]+\d{0,3}|[A-Z]{2,5}\d{0,3})(?:[._-]?(?:[A-Z][a-z]+\d{0,3}|[A-Z]{2,4}))+\d{0,3}"),  # sha256Sum
    re.compile(r"(?=(?:\D*\d){1,2}\D*$)(?=.*(?:[A-Z][a-z]{3,}|[a-z]{4,}))[A-Za-z\d]+"),  # OAuth2Token
    re.compile(r"[A-Z]{2,5}-\d[\w-]*|[A-Z]\+\w+|(?:\w+\.){2,}\w+|\d+-[a-z]+"),  # UX-1182b, U+FE6A, a.module.v2, 16-character
    re.compile(r"[0-9a-f-]+|[0-9A-F-]+|[\d.,]+\W?\w{0,3}|\S+@[\w-]+\.\w.*"),  # hexadecimal, sums, e-mail
    re.compile(r".*\.(?:py|js|ts|json|ya?ml|txt|md|csv|html?|php|java|go|rs|pdf|docx?|xlsx?|png|jpe?g|zip|log|env|ini|conf|sh|exe)"),
    re.compile(r"%\w+%|\$\w+|&\w+|\*+\S*|#\S*|--?\w.*|\w+\+\+?"),  # variables, marks of Markdown, options, C++
)  # fmt: skip


def find_passwords(clues: Clues) -> Iterator[Finding]:
    """Passwords and PINs."""
    words = clues.words
    if words.isdisjoint(_SPEAKS) and words.isdisjoint(_HINTS) and "@" not in clues.text:
        return
    for regex, text in ((_ON_COMMAND_LINE, clues.text), (_PIN, clues.lower)):
        for match in regex.finditer(text):
            if not _CODE.match(match["value"]):
                yield Finding(*match.span("value"), e.PASSWORD, 0.85)
    for match in _TIGHT.finditer(clues.lower):
        value, label = trimmed(clues.text[slice(*match.span("value"))]), match["label"]
        symbol = match["link"].strip(" \"'`«") in (":", "::", "=", "==", "=>", "->", "→")
        if (
            label != "pin"
            and (label in _SURE or _odd(value))
            and is_password(value, bool(match["quote"]), symbol)
        ):
            yield _finding(match, value, 0.85)
    for match in (match for regex in _BESIDE for match in regex.finditer(clues.lower)):
        value = trimmed(clues.text[slice(*match.span("value"))])
        is_address = "@" in value[1:-1] and not _MARKS.search(value)
        mixed = any(map(str.isdigit, value)) and not _TECHNICAL.fullmatch(value) and not is_address
        if mixed and _odd(value) and is_password(value, False, True):
            yield _finding(match, value, 0.75)
    yield from _in_sentences(clues)


def _in_sentences(clues: Clues) -> Iterator[Finding]:
    """Passwords without a fixed connection to the word that names them."""
    tokens = [match for match in _TOKEN.finditer(clues.text) if _looks_like_one(_bare(match[0]))]
    for word in _WORD.finditer(clues.lower) if tokens else ():
        reach = _NEAR if word[0] in _SPEAKS else _NEARER if word[0] in _HINTS else 0
        token = _nearest(clues, word.span(), tokens, reach) if reach else None
        if token is not None:
            yield Finding(token.start(), token.start() + len(_bare(token[0])), e.PASSWORD, 0.6)


def _nearest(
    clues: Clues, word: tuple[int, int], tokens: list[re.Match[str]], reach: int
) -> re.Match[str] | None:
    """The nearest of the tokens around a word in the same sentence that isn't another kind of number."""
    near = []
    for token in tokens:
        start, end = (word[1], token.start()) if token.start() >= word[1] else (token.end(), word[0])
        if 0 <= end - start <= reach and not _END.search(clues.text, start - (start > word[1]), end + 1):
            near.append((end - start, token.start(), token))
    for _, _, token in sorted(near, key=lambda one: one[:2]):
        if not belongs_to_other(clues, token.start(), token.end()):
            return token
    return None


def _looks_like_one(token: str) -> bool:
    if (
        len(token) < 6
        or _is_code_like(token)
        or ("." in token and token[0].isalpha() and is_code(token, True))
    ):
        return False
    return any(form.fullmatch(token) for form in _LOOKS)


def _is_code_like(token: str) -> bool:
    return any(form.fullmatch(token) for form in _LOOKS_LIKE_CODE)


def _finding(match: re.Match[str], value: str, score: float) -> Finding:
    return Finding(match.start("value"), match.start("value") + len(value), e.PASSWORD, score)


def _bare(token: str) -> str:
    """Strip the sentence's punctuation; a mark after a digit may belong to the password."""
    bare = re.sub(r"(?<=\d[!?])[!?]+$", "", token.rstrip(".,;:"))
    return bare if bare[-2:-1].isdigit() else bare.rstrip(".,;:!?")


def trimmed(value: str) -> str:
    """Strip the sentence's punctuation; a final ! or ? after a digit may belong to the password."""
    bare = value.split("</")[0].rstrip(".,;:)]}>")
    marks = sum(not character.isalnum() for character in bare[:-1])
    kept = bare[-1:] in ("!", "?") and (bare[-2:-1].isdigit() or marks > 2)
    return bare if kept else bare.rstrip(".,;:!?)]}")


def _odd(value: str) -> bool:
    """Letters and digits mixed, or capitals in unusual places."""
    if not any(map(str.isalpha, value)) or _UNITS.fullmatch(value):
        return False
    capitals = re.search(r"[a-zß-ÿ][A-Z]|[A-Z][a-z]+\.\w{4}|\.\w*[A-Z]{2}", value)
    return (
        any(map(str.isdigit, value)) or capitals is not None or any(c in "*#$%&^+=~_!@" for c in value[:-1])
    )


def is_password(value: str, quoted: bool, symbol: bool) -> bool:
    """True if a word after "password is" is a password, and not prose ("is required") or code ("= input()")."""
    if len(value) < 4 or (_CODE.match(value) and not (quoted and len(value) >= 6)):
        return False
    if _ATTRIBUTE.fullmatch(value) and not quoted:
        return not is_code(value, symbol)
    if value.isdigit():
        return 4 <= len(value) <= 12
    if value.count("-") >= 3 and all(part.isalpha() for part in value.split("-")):
        return True  # a phrase: correct-horse-battery-staple
    special = any(not c.isalnum() and c not in "-_'’./" for c in value)
    inner = any(c.islower() for c in value) and any(c.isupper() for c in value[1:])
    if any(c.isdigit() for c in value) or special or (inner and len(value) >= 8):
        return True
    return quoted and symbol and len(value) >= 6 and value.lower() not in _NOT_ONE


def is_code(value: str, symbol: bool) -> bool:
    """True if dotted words are an attribute or a host: "config.password", "example.com", but not "Futebol.KxeK"."""
    first, last = value.split(".")[0].lower(), value.split(".")[-1]
    if not symbol:  # after "is" there is little code
        return first in _OBJECTS or (value.islower() and len(last) < 4)
    return first in _OBJECTS or re.search(r"[a-z][A-Z]\w?$|[A-Z]{2}[a-z]|[a-z]{2}[A-Z]{2}", value) is None
