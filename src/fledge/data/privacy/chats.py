"""Names in chats: in lower case, and before the colon of a speaker's line.

"hey tom, its lisa from work"     after a greeting, after a word that introduces
"my sister clara called"          after a relation that is somebody's
"talk soon, tom"                  at the end
"Tom: you there?\nLisa: yes"      at the head of lines; one plain given name among them vouches for the others

A name in lower case must be a given name that is hardly ever another word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.cues import NOT_NAMES, RELATION
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import Lexicon, lexicon

_LOWER = r"[a-zà-öø-ÿ]{3,20}(?:-[a-zà-öø-ÿ]{2,20})?"
_GREETED = re.compile(
    r"(?:^|[\n.!?]\s*)(?:hey+|hi+|hello|hiya|yo|sup|dear|morning|good morning|hallo|moin|servus|na|liebe[rs]?|guten (?:morgen|tag|abend)|salut|coucou|bonjour|bonsoir|cher|chère|hola|holi|oye|buenas"
    rf"|buenos días|buenas (?:tardes|noches)|querid[oa]|olá|ola|oi+|bom dia|boa (?:tarde|noite)),? (?P<name>{_LOWER})(?P<after>(?=\s*[,.!?:;\n)]|\s*$)|(?= [a-zà-ÿ]))",
    re.IGNORECASE,
)
_INTRODUCED = re.compile(
    r"(?<![\w'’])(?:it['’]?s|this is|i['’]?m|i am|here is|hier(?: ist| spricht)?|ich bin(?: der| die)?|c['’ ]?est|ici|je suis|soy|aquí|habla|sou|aqui (?:é|fala))"
    rf" (?:el |la |o |a )?(?P<name>{_LOWER})(?=\s*[,.!?;\n)(]|\s*$| (?:from|aus|von|vom|de|du|da|do|del|and|und|et|y|e|here|speaking|hab|ich|i|je|j['’]|your|dein|ton|tu|teu)(?!\w))",
    re.IGNORECASE,
)
_RELATED = re.compile(
    r"(?<!\w)(?:my|our|his|her|their|your|mein(?:e[rnm]?)?|unser(?:e[rnm]?)?|sein(?:e[rnm]?)?|ihr(?:e[rnm]?)?|dein(?:e[rnm]?)?|mon|ma|notre|son|sa|ton|ta|votre|mi|nuestr[oa]|su|tu|meu|minha|noss[oa])"
    rf" (?:[a-zà-ÿ]{{2,9}} )?(?:{RELATION})(?: called| named| namens)?,? (?P<name>{_LOWER})(?!\w)",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"(?<!\w)(?:ask|tell|text|call|message|email|remind|ping|thank|invite|met|with|and me,? or|frag|frage|sag|sage|schreib|ruf|erinnere|mit|von|dis à|dire à|écris à|écrire à|demande[rz]? à|appelle|appeler|préviens|avec|chez"
    rf"|escríbele a|escribe a|dile a|decirle a|pregunta a|llama a|avisa a|con|escreve a[oà]?|diz a[oà]?|pergunta a[oà]?|liga (?:para|pra)|fala com|avisa|com) (?P<name>{_LOWER})(?!\w)",
    re.IGNORECASE,
)
_SIGNED = re.compile(
    r"(?:(?:^|[\n.!?,])\s*(?:best|cheers|thanks|thank you|thx|ty|talk soon|see you|take care|love|xoxo|lg|vg|mfg|danke|gruß|grüße|viele grüße|liebe grüße|bis (?:dann|bald|später)|bises|bisous|merci|à plus|à bientôt|a\+"
    rf"|saludos|un saludo|besos|un beso|un abrazo|gracias|abraços?|abs|beijos?|bjs|obrigad[oa]|até (?:logo|já)|valeu)[,!.]?\s+|\n\s*[-–—~]{{1,2}} ?)(?:- ?)?(?P<name>{_LOWER})[.!]?\s*(?:$|\n)",
    re.IGNORECASE,
)
_AT_HEAD = re.compile(
    r"^[ \t>*-]*(?:[\[(]?[\d/.:, -]{4,22}(?: ?[ap]m)?[\])]?\s*(?:- )?)?[<\"*]{0,2}"
    r"(?P<name>[^\W\d_][\w'’.-]{1,20}(?: [^\W\d_][\w'’.-]{0,20}){0,2})[>\"*]{0,2} ?(?:\([\d: apm]{3,9}\) ?)?:[*]{0,2}(?=\s)",
    re.MULTILINE,
)
# Zipf frequencies below which a word is a name: on the longer lists, a word as well, and any other.
_ODD, _AMBIGUOUS, _FREQUENT = 3.8, 4.6, 5.6
_GREETING_BEFORE = 45  # characters before an introduction in which somebody is greeted


def find_chat_names(clues: Clues) -> Iterator[Finding]:
    """Names in lower case, recognised by the words around them, and speakers."""
    words = lexicon()
    if clues.text.count(":") > 1:
        yield from _speakers(clues, words)
    if _chat_names().isdisjoint(clues.lower_words) and not any("-" in word for word in clues.lower_words):
        return
    for match in _GREETED.finditer(clues.text):
        name = match["name"]
        ended = match["after"] == "" and clues.text[match.end() : match.end() + 1] != " "
        if not name[0].islower():
            continue
        introduced = _INTRODUCED.match(clues.text, match.end() + 1) is not None
        frequency = words.common.get(name, 0.0)
        named = words.is_given(name) or (name in words.rare_given and frequency < _ODD)
        limit = _AMBIGUOUS if words.is_ambiguous_name(name) else _FREQUENT
        here = (ended or introduced) and frequency < limit
        if _is_plain(words, name) or (named and here and name not in NOT_NAMES):
            yield Finding(*match.span("name"), e.PERSON, 0.65)
    for match in _INTRODUCED.finditer(clues.text):
        greeted = _GREETED.search(clues.text, max(0, match.start() - _GREETING_BEFORE), match.start() + 1)
        name = match["name"]
        odd = greeted and name in words.rare_given and words.common.get(name, 0.0) < _ODD
        if name[0].islower() and (odd or _is_plain(words, name, 4.9 if greeted else 4.6)):
            yield Finding(*match.span("name"), e.PERSON, 0.65)
    for pattern in (_RELATED, _SIGNED, _ASKED):
        for match in pattern.finditer(clues.text):
            name = match["name"]
            odd = pattern is _RELATED and words.is_given(name) and words.common.get(name, 0.0) < 4.2
            if name[0].islower() and (_is_plain(words, name) or (odd and name not in NOT_NAMES)):
                yield Finding(*match.span("name"), e.PERSON, 0.65)


@cache
def _chat_names() -> frozenset[str]:
    """The names that pass the checks below after one of the patterns; without any, a text needs no pattern matching."""
    words = lexicon()

    def passes(name: str) -> bool:
        frequency = words.common.get(name, 0.0)
        if name in words.rare_given and frequency < _ODD:
            return True
        limit = _AMBIGUOUS if words.is_ambiguous_name(name) else _FREQUENT
        return words.is_given(name) and name not in NOT_NAMES and frequency < limit

    return frozenset(filter(passes, words.lower_given))


def _is_plain(words: Lexicon, name: str, frequent: float = 4.6) -> bool:
    return words.is_plain_given(name, frequent) and name not in NOT_NAMES and not is_fictional_word(name)


def _speakers(clues: Clues, words: Lexicon) -> Iterator[Finding]:
    heads = list(_AT_HEAD.finditer(clues.text))
    if len(heads) < 2:
        return
    sure = {name for match in heads if _is_plain(words, (name := match["name"].lower()).split(" ")[0])}
    for match in heads:
        name = match["name"].lower()
        first = name.split(" ")[0]
        vouched = bool(sure) and words.could_be_name(first) and match["name"][0].isupper()
        if name in sure or (
            vouched and first not in NOT_NAMES and not (words.is_word(first) or is_fictional_word(first))
        ):
            yield Finding(*match.span("name"), e.PERSON, 0.6)
