"""Words around names in five languages: titles, greetings, introductions, relations, and what rules out a name.

The words stand in `words/name_cues.txt`. Most patterns end where a name begins, so they are searched for in the few
characters before a candidate.
"""

from __future__ import annotations

import re

from fledge.data.privacy.clues import UPPER
from fledge.data.privacy.word_lists import read_patterns, read_sections, read_words

_P = read_patterns("name_cues")
_LISTS = read_sections("name_cues")
HONORIFICS = read_words("honorifics")
NOT_NAMES = read_words("not_names")  # on lists of names, but hardly ever names in a prompt
PARTICLES = _LISTS["particles"]  # they can't begin a name but belong to one inside it
SAINTS = _LISTS["saints"]  # first words of names of places
NOBODY = _LISTS["nobody"]  # addressed without a name

_BEGIN = r"(?<![^\W_])"
_NOBLE = r"(?:de la|de los|de las|de|da|do|dos|das|del|von der|von|van der|van|le|la)"
_TITLED = r"(?<![.@/-])(?:{})\.?\s(?:{}\s)?$"
TITLE = re.compile(rf"{_BEGIN}{_TITLED.format(_P['titles'], _NOBLE)}")
STORY_TITLE = re.compile(
    rf"{_BEGIN}{_TITLED.format(_P['story titles'], _NOBLE)}"
)  # as often of made-up people
GREETING = re.compile(rf"(?:^|[\n.!?,;:\"“«>]\s*|\b(?:oh|and|und|et|y|e)\s)(?:{_P['greetings']})\s*,?\s+$")
FIELD = re.compile(rf"{_BEGIN}(?:{_P['fields']})(?: is)?\s*[:=]\s*[\"'«„]?\s*$")

# The speaker, or someone of the speaker's: enough for any word that isn't an everyday one.
_FIRST_PERSON = {
    "en": r"my (?:full |first |last |given |maiden |middle )?name is|call me",
    "de": r"mein (?:\w+ )?name (?:ist|lautet)|ich hei(?:ß|ss)e|hier spricht|(?:moin|servus|hallo|hi|hey|guten \w+),? hier ist",
    "fr": r"je m['’]appelle|mon nom (?:complet )?est",
    "es": r"me llamo|mi nombre (?:completo )?es",
    "pt": r"(?:o )?meu nome (?:completo )?é|me chamo|chamo-me|sou (?:o|a)|aqui é (?:o|a)",
}
_NAMED = {  # somebody else, who may be made up
    "en": r"(?:his|her|their|whose|the|full|your) (?:full |first |last )?names? (?:is|was|are)|called|named",
    "de": r"(?:sein|ihr|unser) name (?:ist|lautet)|hei(?:ß|ss)t|namens|genannt",
    "fr": r"s['’]appelle|(?:son|leur) nom est|nommée?|dénommée?",
    "es": r"se llama|(?:su|el) nombre es|llamad[oa]",
    "pt": r"chama-se|se chama|(?:o )?nome del[ea] é|chamad[oa]",
}
# As often the beginning of a sentence about a thing: a listed name must follow.
_PRESENTED = r"i am|i['’]m|this is|it['’]?s|ich bin(?: der| die)?|hier ist|je suis|c['’]est|ici|soy(?: el| la)?|sou|aqui é|habla|fala"
INTRODUCTION = re.compile(rf"{_BEGIN}(?:{'|'.join(_FIRST_PERSON.values())}),?:?\s+[\"'«„]?$")
NAMED = re.compile(rf"{_BEGIN}(?:{'|'.join(_NAMED.values())})\s+[\"'«„]?$")
PRESENTED = re.compile(rf"(?<![\w'’])(?:{_PRESENTED})\s+$")

_MINE = r"(?:my|our|mein(?:e[rnm]?)?|unser(?:e[rnm]?)?|mon|ma|mes|notre|nos|mis?|nuestr[oa]s?|meus?|minhas?|noss[oa]s?)"
_PEOPLE = rf"(?:{_P['relations']}|{_P['trades']})(?:e?s|e?n|innen)?"
_THE = r"(?:the|der|die|den|dem|einen?|einer|an?|le|la|el|o|a|ao|à|un[ea]?|um|uma)"
MINE = re.compile(rf"{_BEGIN}{_MINE} (?:[\w-]+ ){{0,2}}(?:{_P['relations']}|{_P['trades']})(?![^\W_])")
# "Javier Salazar did not answer my letter", "April told me"
TO_ME = re.compile(
    r"(?:['’]s)?(?! (?:and|und|et|y|e|or|oder|with)\b)(?: [\w'’]+){1,4} (?:me|my|mir|mich|mein\w*|moi|mon|ma|mi|meu|minha)(?!\w)"
)
SOMEONE = re.compile(rf"{_BEGIN}(?:{_PEOPLE})(?![^\W_])")
RELATED = re.compile(rf"{_BEGIN}{_MINE} (?:[\w-]+ ){{0,2}}(?:{_P['relations']}),?\s+$")
ROLE = re.compile(
    rf"{_BEGIN}(?:{_MINE} (?:[\w-]+ ){{0,2}}(?:{_PEOPLE})|{_THE} (?:{_P['trades']})|landlord|landlady)"
    rf"(?: called| named| namens)?,?(?: is| are| ist| sind| est| sont| es| son| é| são)?\s+$"
)
_I = r"(?:i|we|i['’]ve|i['’]m|ich|wir|j['’]|j['’]ai|je|nous|yo|eu|me|nos|let['’]s)"
ASK = re.compile(rf"{_BEGIN}(?:{_P['asking']})(?: o| a| ao)?\s$")
DEED = re.compile(rf"{_BEGIN}(?:{_P['deeds']})\s$")
MET = re.compile(rf"{_BEGIN}{_I}(?![^\W_]) ?(?:[^\W\d_']+ ){{0,4}}(?:{_P['meeting']})\s$")
# "Zhang Wei and Li Xiuying are my students": the run of names that is somebody's.
ARE_MINE = re.compile(
    rf"(?P<names>[{UPPER}][^\W\d_]+(?:(?:, | and | und | et | y | e |[ '’-])[{UPPER}][^\W\d_]+){{0,9}}),?"
    rf" (?!(?:and|und|et|y|e|or|oder|with)\b)(?:[a-zà-öø-ÿ]+ ){{1,4}}?{_MINE} (?:[\w-]+ ){{0,2}}?(?:{_PEOPLE}|{_P['groups']})(?![^\W_])"
)

_GIVEN = r"[^\W\d_]{3,20}(?:-[^\W\d_]{2,20})?"
_PAIR = rf"(?P<first>{_GIVEN})(?: (?P<second>{_GIVEN}))?(?![^\W_])"
LOWER_INTRODUCTION = re.compile(rf"{_BEGIN}(?i:{'|'.join(_FIRST_PERSON.values())}) {_PAIR}")
LOWER_RELATION = re.compile(rf"{_BEGIN}(?i:{_MINE}) (?:[^\W\d_]{{2,9}} )?(?i:{_P['relations']}),? {_PAIR}")
LOWER_GREETING = re.compile(
    rf"(?:^|[\n.!?]\s*)(?i:{_P['greetings']}),? {_PAIR}(?=\s*[,.!?:;\n)]|\s*$| (?:its?|this|i|ich|hier|je|c|soy|aqu[ií])\b)"
)
LOWER_PRESENTED = re.compile(
    rf"(?<![\w'’])(?i:{_PRESENTED}) {_PAIR}(?=\s*[,.!?;\n)]|\s*$| (?:from|aus|de|do|da|here)\b)"
)

ARTICLE = {  # a thing, not a person: "the Mercedes", "ein Ford"
    "en": re.compile(r"(?<!\w)(?:the|an?)\s$"),
    "de": re.compile(r"(?<!\w)(?:das|eine?[nmrs]?|im|den|in den)\s$"),
    "fr": re.compile(r"(?<!\w)(?:une?|les)\s$"),
    "es": re.compile(r"(?<!\w)(?:una?|los|las)\s$"),
    "pt": re.compile(r"(?<!\w)(?:uma?)\s$"),
}
# Right after a run of capitals: it is a firm, a place, a law, a thing.
NEXT_IS_NO_PERSON = re.compile(rf"(?:['’]s?)?\s(?:{_P['no_person_after']})(?![^\W_])")
