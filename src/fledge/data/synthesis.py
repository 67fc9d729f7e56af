"""The target writes user turns itself (Magpie, arXiv 2406.08464).

    <start of a user turn, from the template> + opening   ->  the target continues  ->  turn end

Attempt i depends on the stage's seed and on i alone: its category, opening, words and sampling.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fledge.base.errors import DataError
from fledge.data.generation import Generation, Job
from fledge.data.openings import DEFAULT_MIX, DEFAULT_OPENINGS, PLACEHOLDERS
from fledge.data.options import Opening, PromptOptions
from fledge.data.seeds import derive_seed, pick
from fledge.data.turns import decode_all, encode_plain
from fledge.engine import Completion, SamplingParams
from fledge.target import Target

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Draft:
    """A user turn as the target wrote it, before any filter."""

    attempt: int
    category: str
    text: str
    reason: str | None  # "cut", "unfinished" or "template": already rejected


class PromptWriterJobs:
    """Builds the job that writes user turn number i."""

    def __init__(self, target: Target, options: PromptOptions) -> None:
        self._target = target
        self._options = options
        self._openings = _by_category(options)
        self._mix = _checked_mix(options, self._openings)
        self._start = target.chat.user_turn_start()
        self._special = special_token_ids(target)
        self._enders: dict[str, tuple[int, ...]] = {}

    def job(self, attempt: int) -> Job[Draft]:
        """One attempt."""
        rng = random.Random(derive_seed(self._options.seed, "opening", attempt))
        category = pick(self._mix, rng.random())
        openings = self._openings[category]
        opening = rng.choices(openings, [opening.weight for opening in openings])[0]
        ids = encode_plain(self._target, fill(opening.text, rng).rstrip(" "))
        completion = yield Generation([*self._start, *ids], self._params(attempt, opening))
        text, reason = self._read(ids, completion, opening.until)
        return Draft(attempt, category, text, reason)

    def _params(self, attempt: int, opening: Opening) -> SamplingParams:
        return SamplingParams(
            max_tokens=self._options.max_tokens,
            temperature=self._options.temperature,
            top_p=self._options.top_p,
            seed=derive_seed(self._options.seed, "user", attempt),
            stop_token_ids=self._ending_tokens(opening.until) if opening.until else (),
        )

    def _read(
        self, opening: Sequence[int], completion: Completion, until: str | None
    ) -> tuple[str, str | None]:
        ids = completion.token_ids
        if ids and ids[-1] in self._target.chat.turn_end_ids:
            ids = ids[:-1]
        text = decode_all(self._target, [*opening, *ids])
        if self._special.intersection(ids):
            return text, "template"
        if until is None:
            return text.strip(), "cut" if completion.finish_reason == "length" else None
        place = text.find(until, len(decode_all(self._target, opening)))
        if place < 0:
            return text, "cut" if completion.finish_reason == "length" else "unfinished"
        return text[: place + len(until)].strip(), None

    def _ending_tokens(self, until: str) -> tuple[int, ...]:
        """Tokens that contain the complete ending; generation can stop after one."""
        if until not in self._enders:
            tokens = self._target.tokenizer.batch_decode([[i] for i in range(len(self._target.tokenizer))])
            self._enders[until] = tuple(i for i, token in enumerate(tokens) if until in token)
        return self._enders[until]


def fill(text: str, rng: random.Random) -> str:
    """Replace each known `{placeholder}` with one of its words; leave other braces alone."""
    return _PLACEHOLDER.sub(
        lambda match: rng.choice(PLACEHOLDERS[match[1]]) if match[1] in PLACEHOLDERS else match[0], text
    )


def special_token_ids(target: Target) -> frozenset[int]:
    """Ids that represent structure rather than text."""
    added = target.tokenizer.added_tokens_decoder.items()
    return frozenset(target.tokenizer.all_special_ids) | {int(i) for i, token in added if token.special}


def _by_category(options: PromptOptions) -> dict[str, list[Opening]]:
    openings: defaultdict[str, list[Opening]] = defaultdict(list)
    for opening in options.openings or DEFAULT_OPENINGS:
        if opening.weight > 0:
            openings[opening.category].append(opening)
    return dict(openings)


def _checked_mix(options: PromptOptions, openings: dict[str, list[Opening]]) -> dict[str, float]:
    mix = options.mix
    if mix is None:
        shipped = options.openings is None
        mix = DEFAULT_MIX if shipped else {c: sum(o.weight for o in group) for c, group in openings.items()}
    unknown = sorted(category for category, weight in mix.items() if weight and category not in openings)
    if unknown or not openings:
        raise DataError(
            f"no opening has the category {', '.join(unknown) or '(any)'}; "
            f"use {', '.join(openings) or 'weights above 0'}, or add openings of that category"
        )
    return {category: weight for category, weight in sorted(mix.items()) if weight}
