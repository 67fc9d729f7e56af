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
UNNAMED = _LISTS["nobody"]  # addressed without a name

_BEGIN = r"(?<![^\W_])"
_NOBLE = r"(?:de la|de los|de las|de|da|do|dos|das|del|von der|von|van der|van|le|la)"
_MINE = rf"(?:{_P['mine']})"
_PEOPLE = rf"(?:{_P['relations']}|{_P['trades']})(?:e?s|e?n|innen)?"
_OPENING = r"(?:^|[\n.!?,;:\"“«>]\s*|\b(?:oh|and|und|et|y|e)\s)"
_QUOTE = r"[\"'«„]?"

TITLE = re.compile(rf"{_BEGIN}(?<![.@/-])(?:{_P['titles']})\.?\s(?:{_NOBLE}\s)?$")
# "My name is", "Dear", "Patient:": any name follows, however rare.
INTRODUCTION = re.compile(
    rf"(?:{_BEGIN}(?:{_P['first person']}),?:?\s+|{_BEGIN}(?:{_P['fields']})(?: is)?\s*[:=]\s*"
    rf"|{_OPENING}(?:{_P['greetings']})\s*,?\s+){_QUOTE}$"
)
# "My sister", "the plumber", "I met": a person follows, but not any noun with a capital.
RELATION = re.compile(
    rf"{_BEGIN}(?:(?:{_MINE} (?:[\w-]+ ){{0,2}}(?:{_PEOPLE})|(?:{_P['the']}) (?:{_P['trades']}))(?:,? (?:{_P['called']})){{0,2}},?\s+"
    rf"|(?:{_P['we']})(?![^\W_]) ?(?:[^\W\d_']+ ){{0,4}}(?:{_P['meeting']})\s|(?:{_P['deeds']})\s)$"
)
RELATED = re.compile(rf"{_BEGIN}{_MINE} (?:[\w-]+ ){{0,2}}(?:{_P['relations']}),?\s+$")
# "I'm", "this is", "ask": as often the beginning of a sentence about a thing, so a listed name must follow.
MENTION = re.compile(rf"(?<![\w'’])(?:(?:{_P['presented']})\s+|(?:{_P['asking']})(?: o| a| ao)?\s)$")
MINE = re.compile(rf"{_BEGIN}{_MINE} (?:[\w-]+ ){{0,2}}(?:{_P['relations']}|{_P['trades']})(?![^\W_])")
# "Zhang Wei and Li Xiuying are my students": a run of names of people the writer knows.
ARE_MINE = re.compile(
    rf"(?P<names>[{UPPER}][^\W\d_]+(?:(?:, | and | und | et | y | e |[ '’-])[{UPPER}][^\W\d_]+){{0,9}}),?"
    rf" (?!(?:and|und|et|y|e|or|oder|with)\b)(?:[a-zà-öø-ÿ]+ ){{1,4}}?{_MINE} (?:[\w-]+ ){{0,2}}?(?:{_PEOPLE}|{_P['groups']})(?![^\W_])"
)
# "Javier Salazar did not answer my letter", "April told me"
TO_ME = re.compile(
    rf"(?:['’]s)?(?! (?:and|und|et|y|e|or|oder|with)\b)(?: [\w'’]+){{1,4}} (?:me|mir|mich|moi|{_MINE})(?!\w)"
)
_GIVEN = r"[^\W\d_]{3,20}(?:-[^\W\d_]{2,20})?"
LOWER = re.compile(  # of a text in lower case: "my name is john smith", "hey tom, its lisa from work", "my husband tyler"
    rf"(?:(?<![\w'’])(?:{_P['first person']}|{_P['presented']})|{_BEGIN}{_MINE} (?:[^\W\d_]{{2,9}} )?(?:{_P['relations']}),?"
    rf"|(?:^|[\n.!?]\s*)(?:{_P['greetings']}),?) (?=(?P<first>{_GIVEN})(?: (?P<second>{_GIVEN}))?(?![^\W_]))"
)
# Sums, stories and questions about others: without a first person, a person with a title or a trade in them is invented.
MADE_UP = re.compile(
    rf"(?:{_BEGIN}(?:{_P['made up']})|(?:^|[.!?\n] ?)(?:(?:in|dans|en|em) [^.,]{{2,40}}, )?[¿\"]?(?:{_P['questions']}))(?![^\W_])"
)
SPEAKERS = re.compile(rf"(?<![\w'’])(?:{_P['speakers']})(?!\w)")
# Right after a run of capitals: it is a firm, a place, a law, a thing.
NEXT_IS_NO_PERSON = re.compile(rf"(?:['’]s?)?\s(?:{_P['no_person_after']})(?![^\W_])")
