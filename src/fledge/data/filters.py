"""Filters for texts that are unfit as a user's prompt. Every filter returns a reason, or None if the text passes."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fledge.data.sources.markup import has_markup

# A turn that answers itself or continues as another speaker.
_ANSWERED = re.compile(
    r"^\s*(?:#{2,4}\s*)?(?:A|(?:Answer|Solution|Response|Assistant|AI|Bot|System|User|Human|ANSWER|SOLUTION))\s*:"
    r"|^#### |^(?:So,? )?[Tt]he answer is\b"
    r"|^Here(?:'s| is) (?:the|your|a|an) (?:\w+ ){0,3}(?:text|version|summary|paragraph|e?mail|sentence|answer)\b"
    r"|^I(?:'ve| have)? (?:made|changed) (?:the following|some|a few|a couple|a lot|several)\b",
    re.MULTILINE,
)
# A user turn that is an assistant's refusal: the row's roles are mixed up, or an earlier prompt was refused.
# It refuses a request; "I'm unable to install numpy, can you help?" and "I'm sorry to bother you, but I can't provide
# the number" are real user turns.
_REFUSAL = re.compile(
    r"^\s*(?:(?:(?:I['’]m|I am) (?:very |so |truly )?)?(?:sorry|unfortunately|I apologi[sz]e)\b"
    r"(?! (?:to|if|for (?:the|my|being)|that (?:I|my)|about my)\b).{0,80}\b)?"
    r"I(?:['’]m| am)? (?:can['’]t|cannot|won['’]t|unable to|not able to) (?:\w+ly )?"
    r"(?:assist|comply|fulfil+|provide|discuss|engage|help (?:you|with)|(?:create|generate|write) (?:content|that))\b"
    r"|^\s*As an AI(?: language)?(?: model| assistant)?,? I\b",
    re.IGNORECASE | re.DOTALL,
)
# <|im_start|> or half of it; not the pipes of F#, Elixir and R: `xs |> List.map f`.
_BAR = re.compile(r"<[|｜]\w|\w[|｜]>")
# One token per CJK character, else runs of word characters.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|(?:(?![\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])\w)+"
)
_WHITE = str.maketrans("", "", "\n\r\t")
_LONGEST_WORD = 45  # letters; longer words are hashes, keys, paths or glued text
_GLUED = 0.7  # largest share of a text in such words
_LETTERS = 0.5  # least share of letters with their marks, digits and spaces
_SCRIPTS = 2  # more scripts than this besides Latin in one prompt are noise
_SCRIPT_OF = {
    **dict.fromkeys(("LATIN", "MICRO", "MASCULINE", "FEMININE", "MODIFIER"), None),
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"), "CJK"),
}
_LOOP_WORDS = 16  # shorter texts can't be distinguished from a list
_LOOP_DISTINCT = 0.6  # least share of distinct 4-grams
_SAME_IN_A_ROW = 5  # "no no no no no"


@dataclass(frozen=True)
class Limits:
    """Lengths of a prompt in words."""

    min_words: int = 4
    max_words: int | None = 300  # None: no limit


def words(text: str) -> list[str]:
    """The text's words, case and width folded, without punctuation."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def reject_reason(text: str, limits: Limits, special_tokens: Iterable[str] = ()) -> str | None:
    """The first reason to reject a text by itself: length, template, noise, loop or answered."""
    text_words = words(text)
    if len(text_words) < limits.min_words:
        return "too_short"
    if reason := _form_reason(text, text_words, limits, special_tokens):
        return reason
    return "answered" if _ANSWERED.search(text) else None


def first_unfit(
    turns: Sequence[str], limits: Limits, special_tokens: Iterable[str] = ()
) -> tuple[int, str] | None:
    """The number of a human-written conversation's first unfit turn, with the reason; None if all are fit.

    A conversation is too short as a whole: many begin with a greeting.
    """
    tokens = tuple(special_tokens)
    turns_words = [words(text) for text in turns]
    if sum(map(len, turns_words)) < limits.min_words:
        return 0, "too_short"
    for number, (text, text_words) in enumerate(zip(turns, turns_words, strict=True)):
        if text_words and (reason := _form_reason(text, text_words, limits, tokens)):
            return number, reason
        if _REFUSAL.search(text[:200]):
            return number, "refusal"
    return None


def _form_reason(
    text: str, text_words: Sequence[str], limits: Limits, special_tokens: Iterable[str]
) -> str | None:
    """Reason to reject a text of any origin: too long, template, noise or loop."""
    if limits.max_words is not None and len(text_words) > limits.max_words:
        return "too_long"
    if has_template_text(text, special_tokens):
        return "template"
    if is_noise(text, text_words):
        return "noise"
    return "loop" if is_loop(text_words) else None


def has_template_text(text: str, special_tokens: Iterable[str]) -> bool:
    """True if chat template markup leaked into the text."""
    return _BAR.search(text) is not None or has_markup(text) or any(token in text for token in special_tokens)


def is_noise(text: str, text_words: Sequence[str]) -> bool:
    """True if characters or words look like no language: unprintable, mostly symbols, glued, or mixed scripts."""
    if not _is_plain_ascii(text) and any(_is_unprintable(character) for character in text):
        return True
    plain = sum(character.isalnum() or character.isspace() or _is_mark(character) for character in text)
    if plain < _LETTERS * len(text):
        return True
    if sum(len(word) for word in text_words if len(word) > _LONGEST_WORD) > _GLUED * len(text):
        return True
    if text.isascii():
        return False
    scripts = {script for character in text if (script := _script(character)) is not None}
    return len(scripts) > _SCRIPTS


def is_loop(text_words: Sequence[str]) -> bool:
    """True if the text repeats itself, as a small target does when it degenerates."""
    run = 1
    for before, word in itertools.pairwise(text_words):
        run = run + 1 if word == before and any(map(str.isalpha, word)) else 1  # not 1 1 1, not ___ ___ ___
        if run >= _SAME_IN_A_ROW:
            return True
    if len(text_words) < _LOOP_WORDS:
        return False
    grams = Counter(zip(text_words, text_words[1:], text_words[2:], text_words[3:], strict=False))
    return len(grams) < _LOOP_DISTINCT * grams.total()


def _is_plain_ascii(text: str) -> bool:
    return text.isascii() and text.translate(_WHITE).isprintable()


def _is_unprintable(character: str) -> bool:
    if character in "\n\r\t":
        return False
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs")


def _is_mark(character: str) -> bool:
    """True if the character is a vowel sign, as a third of Burmese is; not the accents stacked on letters for fun."""
    return character > "\u036f" and unicodedata.category(character).startswith("M")


def _script(character: str) -> str | None:
    """A letter's script, by the first word of its Unicode name; Latin is special-cased for speed."""
    if character < "\x80" or not character.isalpha():
        return None
    plain = unicodedata.normalize("NFKC", character)[0]  # ℝ and ⁿ are Latin letters, not scripts of their own
    first = unicodedata.name(plain, "UNKNOWN").split(" ", 1)[0]
    return _SCRIPT_OF.get(first, first)
