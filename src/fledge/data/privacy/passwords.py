"""Passwords: after a word such as "password", "mot de passe", "Kennwort", on command lines, in connection strings.

the wifi at the cabin is Futebol.KxeK      log in with user anna and Xy12-3      DB_PASS=Xy12-3      PIN 4711
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.word_lists import read_sections

_LABEL = (
    r"pass[ _-]?(?:word|wort|phrase|code|key)|passwd|pass|pwd|psw|pswd|pw|kennwort|losung(?:swort)?|codewort|zugangscode|mot de passe|mdp|code (?:d['’]acc[eè]s|secret|(?:du |de la )?wi-?fi)|contrase(?:ñ|n)a"
    r"|clave|passe?|senha|palavra[- ]passe|palavra[- ]chave|palabra clave|login|log-?in|credentials|creds|zugangsdaten|identifiants|credenciales|credenciais|acceso|acesso"
    r"|w-?lan(?:[- ]?(?:key|schl(?:ü|ue)ssel))?|wi-?fi|hotspot|pin(?:[ -]?(?:code|number))?"
)
_WEAK = re.compile(  # words that name a place to log in as often as the password
    r"log-?in|credentials|creds|zugangsdaten|identifiants|credenciales|credenciais|acceso|acesso|w-?lan|wi-?fi|hotspot|passe?|clave|passkey"
)
_OF = r"(?:(?:for|für|fuer|pour|para|des?|du|do|da|del|der|von|vom|of|at|in|im|auf|on|to|zum?|zur|am|beim|bei|en|dans|chez|aux?|no|na|here|there|hier)\b[^.:=\n>]{0,40}?)?"
_KIND = (  # "senha provisória:", "Passwort (das alte) lautet"
    r"(?:\s(?:provis\w+|tempor\w+|nuev\w+|nov\w+|actuel\w*|actual|atual|antig\w+|ancien\w*|inicial|initial|maestr\w+|mestre|por defecto|par défaut|padr[aã]o|principal\w*|root|admin)"
    r"|\s\([^()\n]{1,30}\))?"
)
_STILL = (
    r"(?:\s*\b(?:still|now|just|currently|simply|probably|übrigens|noch|immer|jetzt|weiterhin|einfach|nach wie vor|toujours|maintenant|désormais|encore|todavía|sigue siendo|ahora|"
    r"aún|ainda|agora|sempre|mesmo|bien|changed to|set to|geändert auf|btw|actually|again|vorher|zuletzt|früher|avant|antes|before|previously|formerly|originally|always|immer noch)\b){0,2}"
)
_LINK = (
    r"(?:[:=]{1,2}|=>|->|→|\bis\b:?|'s\b|\bwas\b:?|\bare\b:?|\bist\b:?|\blautet\b:?|\bwar\b:?|\bheißt\b|\best\b\s?:?|\bétait\b|\bes\b:?|\bé\b:?|\bera\b:?|\bto\b|\bsigue siendo\b|\bcontinua(?: a ser| sendo)?\b|\breste\b|\bbleibt\b"
    r"|\bc['’]est\b|\b(?:geändert|gesetzt|zurückgesetzt|changed|set|reset|updated|changée?|modifiée?|réinitialisée?|cambiad[ao]|cambió|restablecid[ao]|mudad[ao]|mudou|alterad[ao]|redefinid[ao])\s(?:to|auf|en|à|a|para|por)\b)"
)
_PASSWORD = re.compile(
    rf"(?<![^\W_])(?P<label>(?:\w+_)?(?:{_LABEL}))(?:_\w+)?[\"']?\]?{_KIND}\s*(?P<link>(?:{_OF}{_LINK}{_STILL}:?)|\s(?=[\"'`«]))"
    rf"\s*(?P<quote>[\"'`«“]?)\s?(?P<value>[^\s\"'`«»<“”][^\s\"'`«»“”]{{3,63}})",
    re.IGNORECASE,
)
# "temporary password Xy12-345 expires", "the default password (Xy12-345)", "I use Xy12-345 as my password"
_NAMED = (
    r"pass(?:word|wort|code|phrase)|passwd|kennwort|mot de passe|mdp|contrase(?:ñ|n)a|senha|palavra-passe"
)
_BARE = re.compile(
    rf"(?<![^\W_])(?:(?:{_NAMED})\s\(?(?P<value>[^\s\"'`«»<(][^\s\"'`«»]{{6,63}})"
    rf"|(?P<before>(?<!\S)[^\s\"'`«»<(][^\s\"'`«»]{{5,63}})[\"']? (?:as|als|comme|como) (?:\w{{1,7}} ){{0,2}}(?:{_NAMED})(?!\w))",
    re.IGNORECASE,
)
_NAMED_SIGN = re.compile(_NAMED)
_TECHNICAL = re.compile(
    r"(?:sha|md|base|utf|aes|rsa|pbkdf|argon|bcrypt|oauth|http|ipv|x5|win|v|ldap|php|mysql|sql|py|log|wpa|step|level|field|test|user)\W?\d\w*|\d+\w{1,3}|\d+[- ]\w+|\w+\d\.\w+|[\d.,:/-]+",
    re.IGNORECASE,
)
# Cheap: without one of these there is no password.
_TRIGGER = re.compile(
    r"pas[sw]|pwd|psw|pw|kennw|losung|codewort|zugang|mdp|code|contrase|clave|senha|palavra|palabra|log|cred|identif|acc?es|lan|fi|hotspot|pin|key|curl|wget|user|benutz|utili|usu[aá]ri",
)
_BESIDE_EMAIL = re.compile(
    r"@[\w.-]+\.\w{2,24} ?[/|] ?(?P<value>[^\s/|@<>]{6,64})(?!\S)"
)  # ann@acme.org / Xy12-3
# "log in as anna with Xy12-3", "user anna, pass Xy12-3", "user: anna / Xy12-3", "Benutzer anna und Xy12-3"
_BESIDE_USER = re.compile(
    r"(?<![^\W_])(?:user(?:name)?|login|creds|credentials|zugang(?:sdaten)?|identifiants|acceso|acesso|log in as|sign in as|benutzer(?:name)?|utilisateur|identifiant|usuario|utilizador|usuário)\s?[:=]?\s?[\"'`]?(?P<user>[\w.@+-]{2,40})[\"'`]?"
    r"(?:\s?[,;/|]\s?|\s(?:and|with|und|mit|et|avec|y|con|e|com)\s)(?:the |das |le |la |el |a |o )?(?:pass(?:word|wort|wd)?|pwd|pw|kennwort|mdp|mot de passe|contraseña|clave|senha|palavra-passe)?\s?[:=]?\s?[\"'`]?"
    r"(?P<value>[^\s\"'`<>]{5,64})",
    re.IGNORECASE,
)
# curl -u admin:Xy12, sshpass -p Xy12, mysql -pXy12, --password Xy12; PIN 4711
_ON_COMMAND_LINE = re.compile(
    r"(?<![\w-])(?:(?:curl|wget|https?|ldapsearch)\s[^\n]{0,120}?(?:-u|--user)[ =][\"']?[\w.@\\-]{1,64}:|sshpass -p ?|mysql\w{0,5}\s[^\n|;]{0,80}?-p|--pass(?:word|wd|phrase)?[ =])"
    r"[\"']?(?P<value>[^\s\"'`<>$|;{}]{4,64})"
)
_PIN = re.compile(
    r"(?<![^\W_])(?:pin(?:[ -]?(?:code|number))?(?: (?:do|da|de la|del|for the|zum|für den?) \w{4,12})?|(?:schlüssel)?tresor-?code|code de la boîte à clés|code (?:du portail|de l['’]alarme))(?: (?:is|ist|est|es|é))?:? ?#? ?(?P<value>\d{4,8})(?![\w.,:/-]*\d)(?! (?:to|as|on)(?: the)? (?:high|low|gnd|input|output|esp|arduino|gpio|raspberry))",
    re.IGNORECASE,
)
# "= input(", "= os.environ[", ": str", "= {{ secret }}"
_CODE = re.compile(
    r"[A-Za-z_][\w.]*[(\[][\w., =]*[)\]]?:?$|\$?\{|(?:str|string|int|none|null|true|false|os|self|varchar)\b|(?:https?|file)://|%[({s]",
    re.IGNORECASE,
)
# "config.password", "req.body.newPassword": words with a capital only at the beginning
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_CODE_WORD = re.compile(
    r"_*(?:[A-Z]?[a-z]+\d?|[A-Z]{2,})(?:_*(?:[A-Z][a-z]+\d?|(?<=_)[A-Za-z\d]+|(?:ID|URL|DB|API|JWT|SSH|AWS|IP)(?![a-z])))*_*"
)
_OBJECTS = read_sections("field_keys")["objects"]
_SHORT_WORDS = frozenset(("id", "ip", "db", "ui", "io", "of", "is", "to", "by", "my", "in", "on", "pw", "me"))
_NOT_ONE = frozenset(("password", "passwort", "contraseña", "string", "kennwort", "username", "undefined"))


def find_passwords(clues: Clues) -> Iterator[Finding]:
    """Passwords and PINs."""
    text = clues.text
    if "@" in text:
        for match in _BESIDE_EMAIL.finditer(text):
            value = match["value"].rstrip(".,;:!?)]}")
            if _odd(value):
                yield _finding(match, value, 0.8)
    if _TRIGGER.search(clues.lower) is None:
        return
    for regex in (_ON_COMMAND_LINE, _PIN):
        for match in regex.finditer(text):
            if not _CODE.match(match["value"]):
                yield Finding(*match.span("value"), e.PASSWORD, 0.85)
    for match in _BESIDE_USER.finditer(text):
        value = trimmed(match["value"])
        if _odd(value) and "@" not in value[1:-1] and is_password(value, False, False):
            yield _finding(match, value, 0.8)
    for match in _PASSWORD.finditer(text):
        value, link = trimmed(match["value"]), match["link"]
        symbol = any(mark in link for mark in (":", "=", "->", "→"))
        weak = _WEAK.fullmatch(match["label"].lower()) is not None
        if (weak and not _odd(value)) or (match["label"].lower() == "pin" and value.isdigit()):
            continue  # numbers after "PIN" are found above
        if is_password(value, bool(match["quote"]), symbol):
            yield _finding(match, value, 0.85)
    if _NAMED_SIGN.search(clues.lower):
        for match in _BARE.finditer(text):
            group = "value" if match["value"] else "before"
            value = trimmed(match[group])
            mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
            if (
                len(value) >= 6
                and mixed
                and not _TECHNICAL.fullmatch(value)
                and is_password(value, False, True)
            ):
                start = match.start(group)
                yield Finding(start, start + len(value), e.PASSWORD, 0.75)


def _finding(match: re.Match[str], value: str, score: float) -> Finding:
    return Finding(match.start("value"), match.start("value") + len(value), e.PASSWORD, score)


def trimmed(value: str) -> str:
    """Without the sentence's punctuation; a final ! or ? after a digit may belong to the password."""
    bare = value.split("</")[0].rstrip(".,;:)]}>")
    marks = sum(not character.isalnum() for character in bare[:-1])
    kept = bare[-1:] in ("!", "?") and (bare[-2:-1].isdigit() or marks > 2)
    return bare if kept else bare.rstrip(".,;:!?)]}")


def _odd(value: str) -> bool:
    """Letters and digits mixed, or capitals in unusual places."""
    letters = any(c.isalpha() for c in value)
    return (
        letters
        and (
            any(c.isdigit() for c in value)
            or re.search(r"[a-zß-ÿ][A-Z]|[A-Z][a-z]+\.\w{4}|\.\w*[A-Z]{2}", value) is not None
            or any(c in "*#$%&^+=~_!@" for c in value[:-1])
        )
        and not re.fullmatch(
            r"\d+(?:[.,]\d+)?[A-Za-z]{1,4}(?:/s)?|[\d.,:]+\w{0,3}|\d+x\d+|802\.\w+|[vV]\d[\w.]*", value
        )
    )


def is_password(value: str, quoted: bool, symbol: bool) -> bool:
    """Whether a word after "password is" is a password, and not prose ("is required") or code ("= input()")."""
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
    """Whether dotted words are an attribute or a host: "config.password", but not "Futebol.KxeK"."""
    parts = value.split(".")
    if not symbol:  # after "is" there is little code
        return parts[0].lower() in _OBJECTS or (value.islower() and len(parts[-1]) < 4)
    humps = [hump for part in parts for hump in re.findall(r"[A-Z]*[a-z]+|[A-Z]+", part)]
    return parts[0].lower() in _OBJECTS or (
        all(_CODE_WORD.fullmatch(part) for part in parts)
        and all(len(hump) > 2 or hump.lower() in _SHORT_WORDS for hump in humps)
    )
