"""User names, handles and links to profiles; coordinates.

username: mia_h94      follow me @mia_h94      linkedin.com/in/mia-holm-94      gps 52.51627, 13.37770
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.word_lists import read_patterns, read_words

_P = read_patterns("handle_words")

_SITES = r"insta(?:gram)?|twitter|telegram|snap(?:chat)?|discord|github|tik ?tok|skype|steam|reddit|twitch|mastodon|bluesky|signal|psn|gamertag"
_NAMED = (
    r"user[ _-]?(?:name|id)|screen[ _-]?name|handle|login(?:[ _-]?name)?|nick(?:name)?|benutzer(?:name|kennung)|nutzername|nom d['’]utilisateur"
    r"|pseudo|identifiant|(?:nombre de )?usuario|(?:nome de )?(?:usuário|utilizador)|用户名|ユーザー名|아이디"
)
_LABELLED = re.compile(
    rf"(?<![a-z0-9_])(?:{_NAMED}|{_SITES})[\"']?\]?(?:\s?[:=]|\s(?:is|ist|est|es|é|handle|name)|(?=\s@))\s?[\"']?(?P<value>@?[a-z][a-z0-9._-]{{2,29}}(?:#\d{{4}})?)(?![\w@(\[/]|\.\w)"
)
# Without a digit or a mark, after these words alone: "my username is sparklefish", "user name wparker is locked".
_STRONG = re.compile(
    rf"(?<![a-z0-9_.$-])(?:{_P['user names']})(?:\s(?:{_P['of']})\s(?:\w+\s)?\w+(?=\s?:|\s(?:{_P['links']})\s))?(?P<link>[\"']?\s?(?::|->|→)|[\"']?\s(?:{_P['links']}))?\s[\"'«„“`]?"
    rf"(?P<value>[a-z][a-z0-9._-]{{3,29}})(?![\w@(\[/=*%$-]|[.:]\w)(?P<after>(?=[\"'»“”`]?\s?(?:$|[,;.!?)]|\n|(?:{_P['after']})(?![^\W_]))))?"
)
_USER = re.compile(
    rf"(?<![a-z0-9_.$-])(?:{_P['users']})\s[\"'«]?(?P<value>[a-z][a-z0-9]*[._][a-z0-9._]{{2,25}})(?![\w@(\[/=-]|\.\w)"
)
_ADJECTIVE = re.compile(
    r"\w+(?:able|ible|ed|ing|ive|ic|al|less|(?<!f)ish|bar|iert|lich|(?<!f)isch|[aie]d[oa]s?|[ai]nte|ée?s?|tion|ity)"
)
_PLACEHOLDER = re.compile(
    r".*(?:user|name|test|admin|demo|example|login|foobar|handle).*|(?:var)?char.*|string.*|(?:null|int|bool|root|guest)\w*"
    r"|(?:local)?host(?:name)?|\w*(?:field|text)"
)
_HANDLE = re.compile(r"(?<![\w@./])(?:@(?=[a-z._]*[\d_])[a-z][\w.]{2,29}|[a-z][\w.]{2,29}#\d{4})(?![\w@(/])")
_SOCIAL = re.compile(
    rf"(?<![^\W_])(?:{_SITES}|handle|follow|dm|suivez|folg\w*|sígueme|segue|profile?|account|konto|compte|cuenta|conta)(?![^\W_])"
)
_PROFILE = re.compile(
    r"(?<![\w.])(?:https?://)?(?:[a-z]{2,3}\.)?(?:linkedin\.com/in/|(?:facebook|instagram|twitter|x|threads|vk)\.com/|t\.me/|(?:tiktok|medium|youtube)\.com/@"
    r"|reddit\.com/u(?:ser)?/|xing\.com/profile/|github\.com/(?=[\w-]+/?(?![\w/.-])))(?P<user>[\w.%-]{3,60})/?(?![\w/])",
    re.IGNORECASE,
)
_NO_HANDLES = read_words("no_handles")
_DOMAINS = read_words("top_level_domains")
_EVERYDAY = 4.5  # Zipf frequency from which a word isn't a name
_NUMBER = r"[-+−]?\d{1,3}\.\d{3,}"
_PAIR = re.compile(rf"(?<![\w.])(?P<lat>{_NUMBER})°? ?[NS]?[,;/ ]\s?(?P<lon>{_NUMBER})°? ?[EWO]?(?![\w.]\d)")
_DEGREES = re.compile(
    r"\d{1,2}° ?\d{1,2}['’′] ?\d{1,2}(?:\.\d+)?(?:\"|''|″)? ?[NS],? ?\d{1,3}° ?\d{1,2}['’′] ?\d{1,2}(?:\.\d+)?(?:\"|''|″)? ?[EWO](?!\w)"
)
_MAPPED = re.compile(
    r"(?<![^\W_])(?:lat\w*|lon\w*|gps|geo\w*|co-?ord\w*|koordinat\w*|position|location|standort|ubicación|localização|maps?|pin)(?![^\W_])"
)


def find_handles(clues: Clues) -> Iterator[Finding]:
    """User names and links to profiles."""
    for match in _LABELLED.finditer(clues.lower):
        value = match["value"]
        odd = value[0] == "@" or re.search(r"\d|[a-z][_-][a-z]", value) is not None
        if (
            odd
            and value.strip("@") not in _NO_HANDLES
            and not re.fullmatch(r"[a-z_]+_(?:id|name|user|field|input)|v?[\d.]+", value)
        ):
            yield Finding(*match.span("value"), e.USERNAME, 0.7)
    for regex in (_STRONG, _USER):
        for match in regex.finditer(clues.lower):
            if _is_user_name(clues.text[slice(*match.span("value"))], match):
                yield Finding(*match.span("value"), e.USERNAME, 0.65)
    if ("@" in clues.text or "#" in clues.text) and _SOCIAL.search(clues.lower):
        for match in _HANDLE.finditer(clues.lower):
            yield Finding(match.start(), match.end(), e.USERNAME, 0.65)
    if ".com/" in clues.lower or "t.me/" in clues.lower:
        for match in _PROFILE.finditer(clues.text):
            if match["user"].lower() not in _NO_HANDLES:
                yield Finding(match.start(), match.end(), e.USERNAME, 0.85)


def _is_user_name(value: str, match: re.Match[str]) -> bool:
    """True if the word after "user name" is one: not a word of the language, or one that contains a person's name."""
    words, lower = lexicon(), value.lower()
    parts = re.findall(r"[A-Z]?[a-zß-ÿ]{3,}", value)
    named = any(_is_name(part.lower()) for part in parts)
    if lower in _NO_HANDLES or lower.rpartition(".")[2] in _DOMAINS or _PLACEHOLDER.fullmatch(lower):
        return False
    is_mixed = value.isalnum() and any(part.lower() not in words.common for part in parts if len(part) > 4)
    if (
        not value.isalpha() or value[1:] != lower[1:]
    ):  # tina.meier, JohnnyB, tnguyen44; not "user.id", "TextField"
        return named or (is_mixed and not value.isalpha())
    link = match.groupdict().get("link")
    return (
        (link is not None or match["after"] is not None)
        and lower not in words.common
        and not _ADJECTIVE.fullmatch(lower)
    )


def _is_name(word: str) -> bool:
    words = lexicon()
    return (
        words.is_any_name(word)
        and not words.is_ambiguous_name(word)
        and words.common.get(word, 0.0) < _EVERYDAY
    )


def find_coordinates(clues: Clues) -> Iterator[Finding]:
    """Points on the map; a pair of numbers needs a word or a degree sign beside it."""
    if clues.digits < 6 or ("." not in clues.text and "°" not in clues.text):
        return
    for match in _DEGREES.finditer(clues.text):
        yield Finding(match.start(), match.end(), e.LOCATION, 0.8)
    for match in _PAIR.finditer(clues.text):
        near = "°" in match[0] or _MAPPED.search(clues.lower, max(0, match.start() - 40), match.end() + 20)
        lat, lon = (float(match[name].replace("−", "-")) for name in ("lat", "lon"))
        if near and abs(lat) <= 90 and abs(lon) <= 180:
            yield Finding(match.start(), match.end(), e.LOCATION, 0.8)
