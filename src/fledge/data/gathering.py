"""From a source's rows to its pool: privacy treatment, filters, evaluation overlap, written in shards.

source ──► batches of rows ──► examine() ──► pool/NAME/prompts-00000.parquet
                                  │          pool/NAME/rejects/...           reasons, never texts
           in this process, ──────┘
           in several, or in Ray actors: a row's result depends on that row alone
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Protocol

from fledge.data.filters import Limits, first_unfit, has_template_text
from fledge.data.language import LanguageFilter, uncovered_language
from fledge.data.options import PromptOptions
from fledge.data.overlap import evaluation_indexes
from fledge.data.privacy import Audit, Treated, write_audit
from fledge.data.processes import map_in_processes
from fledge.data.prompt_store import UNCOVERED, PromptWriter, Reject, TrainingPrompt
from fledge.data.seeds import salted_hash, text_id
from fledge.data.sources import Record, Source, Unusable
from fledge.data.sources.opening import DEFAULT_CATEGORY
from fledge.target import Target

Row = Record | Unusable
_CATEGORIES = 1024  # cached


class Treatment(Protocol):
    """The part of the privacy filter this stage uses. It must give the same result for the same texts and key."""

    def treat(self, conversation: Sequence[str], key: str, /) -> Treated:
        """Drop, redact or replace private data; texts with one `key` form one conversation."""
        ...


@dataclass(frozen=True)
class ExaminerSettings:
    """Everything an examiner is built from, so that another process can build the same one."""

    options: PromptOptions
    special_tokens: tuple[str, ...]
    salt: str
    make_treatment: Callable[[], Treatment] | None = None
    template: TemplateFacts | None = None  # None: it takes everything
    drops_uncovered: bool = False  # prompts in a language that the privacy filter's rules don't cover


@dataclass(frozen=True)
class TemplateFacts:
    """The parts of a request that the target's chat template reads; serving doesn't show it the others either."""

    takes_tools: bool
    shows_calls: bool
    names: frozenset[str]  # all words of the template: options among them are looked at

    @classmethod
    def of(cls, target: Target) -> TemplateFacts:
        """A target's."""
        names = frozenset(re.findall(r"\w+", str(target.tokenizer.chat_template or "")))
        return cls(target.chat.takes_tools, target.chat.shows_calls, names)


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of one source."""

    rows: list[Row]
    source: str
    licence: str


@dataclass(frozen=True)
class Examined:
    """A batch's results, in the rows' order."""

    prompts: list[TrainingPrompt]
    rejects: list[Reject]
    audit: Audit | None  # of the privacy filter, if any


class Examiner:
    """Examines rows one by one. Texts are treated first, so later steps never see what was removed."""

    def __init__(self, settings: ExaminerSettings) -> None:
        options, self._settings = settings.options, settings
        self._limits = Limits(options.min_words, options.max_words)
        self._largest = options.max_record_kib * 1024
        self._language = LanguageFilter(options.languages)
        self._evaluation = evaluation_indexes(options.evaluation_files)
        self._treatment = settings.make_treatment() if settings.make_treatment is not None else None
        self._category = lru_cache(maxsize=_CATEGORIES)(self._treated_category)
        self._tools = lru_cache(maxsize=_CATEGORIES)(self._treated_tools)

    def examine(self, batch: Batch) -> Examined:
        """Prompts and rejects of a batch."""
        examined = Examined([], [], Audit() if self._treatment is not None else None)
        for row in batch.rows:
            result = self._examine_row(row, batch.source, batch.licence, examined.audit)
            if isinstance(result, TrainingPrompt):
                examined.prompts.append(result)
            else:
                examined.rejects.append(result)
        return examined

    def _examine_row(
        self, row: Row, source: str, licence: str, audit: Audit | None
    ) -> TrainingPrompt | Reject:
        if isinstance(row, Unusable):
            return Reject(row.row, "", row.reason, "")
        row = as_served(replace(row, category=self._category(row.category)), self._settings.template)
        results = [result.content for step in row.results for result in step]
        texts = (*row.turns, *results, *((row.system,) if row.system else ()))
        if sum(map(len, (*texts, row.tools, row.template_options))) > self._largest:
            return Reject(row.row, row.category, "too_large", "")  # without a hash: it isn't treated
        tools = self._tools(row.tools)
        if tools is None:
            return Reject(row.row, row.category, "private_tools", "")
        losses, reason = list(row.losses), None
        if self._treatment is not None:
            if (language := uncovered_language(row.turns)) is not None:
                if self._settings.drops_uncovered:
                    return Reject(row.row, row.category, UNCOVERED, "", language)
                losses.append(f"uncovered_{language}")
            treated = self._treatment.treat(texts, f"{source}:{row.row}")
            if audit is not None:
                audit.add(treated)
            if treated.turns is None:  # without a hash: a short text could be guessed
                return Reject(row.row, row.category, f"private_{treated.reason or 'data'}", "")
            texts = tuple(treated.turns)
        turns = texts[: len(row.turns)]
        system = texts[-1] if row.system else None
        treated_results = iter(texts[len(row.turns) :])
        steps = [[(result.name, next(treated_results)) for result in step] for step in row.results]
        if (unfit := self._first_unfit(turns, steps)) is not None:
            number, answered, why = unfit
            reason = None if number else why
            if number:  # the turns before it are a conversation of their own
                turns, steps, losses = turns[:number], steps[:answered], [*losses, f"later_{why}"]
        if reason is None and system is not None and has_template_text(system, self._settings.special_tokens):
            reason = "template"  # its tokens would be read as turns
        if reason is not None:
            return self._reject(row, turns, reason)
        for file, index in self._evaluation.items():
            if any(turn in index for turn in turns):
                return self._reject(row, turns, "evaluation", file)
        # The id covers the system prompt and tools: the same question with others is a different prompt.
        prompt = TrainingPrompt(
            "",
            source,
            row.category,
            list(turns),
            row.row,
            licence,
            system,
            tools,
            row.template_options,
            json.dumps(steps, ensure_ascii=False) if any(steps) else "",
            list(dict.fromkeys(losses)),
        )
        results_id = (prompt.results,) if prompt.results else ()
        return replace(prompt, prompt_id=text_id([*prompt.context, *turns, *results_id]))

    def _first_unfit(
        self, turns: Sequence[str], steps: Sequence[Sequence[tuple[str, str]]]
    ) -> tuple[int, int, str] | None:
        """Numbers of turns and of turns with their results before what can't be kept, and why; None if all can."""
        first = first_unfit(turns, self._limits, self._settings.special_tokens)
        unfit = [] if first is None else [(first[0], first[0], first[1])]
        unfit += [(n, n, "language") for n, turn in enumerate(turns) if not self._language.accepts(turn)][:1]
        for number, step in enumerate(steps):
            if any(has_template_text(text, self._settings.special_tokens) for _, text in step):
                unfit.append((number + 1, number, "template"))
        return min(unfit, default=None, key=lambda one: one[:2])

    def _treated_tools(self, tools: str) -> str | None:
        """Treat the texts in the description of tools; None if they must be dropped."""
        if self._treatment is None or not tools:
            return tools
        described = json.loads(tools)
        treated = self._treatment.treat(list(_texts(described)), tools)
        if treated.turns is None:
            return None
        replaced = iter(treated.turns)
        return json.dumps(_with_texts(described, replaced), ensure_ascii=False)

    def _treated_category(self, category: str) -> str:
        """Treat a row's category, which is free text: one with private data isn't used."""
        if self._treatment is None:
            return category
        treated = self._treatment.treat([category], category)
        return (
            category if treated.turns is not None and list(treated.turns) == [category] else DEFAULT_CATEGORY
        )

    def _reject(self, row: Record, turns: Sequence[str], reason: str, detail: str = "") -> Reject:
        return Reject(
            row.row, row.category, reason, salted_hash(self._settings.salt, "\x1f".join(turns)), detail
        )


def as_served(row: Record, template: TemplateFacts | None) -> Record:
    """The row without what the target's template doesn't look at; each loss is named."""
    if template is None:
        return row
    losses = list(row.losses)
    options = json.loads(row.template_options) if row.template_options else {}
    shown = {name: value for name, value in options.items() if name in template.names}
    if len(shown) < len(options):
        losses.append("template_options")
    turns, results, tools = row.turns, row.results, row.tools
    if tools and not template.takes_tools:
        tools = ""
        losses.append("tools")
    if any(results) and not (template.shows_calls and tools):
        first = next(number for number, step in enumerate(results) if step)
        turns, results = turns[: first + 1], ()
        losses.append("tool_results")
    return replace(
        row,
        turns=turns,
        tools=tools,
        results=results,
        template_options=json.dumps(shown, sort_keys=True, ensure_ascii=False) if shown else "",
        losses=tuple(losses),
    )


def _texts(value: Any) -> Iterator[str]:
    """The texts in a JSON value, without the keys."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(inner)


def _with_texts(value: Any, texts: Iterator[str]) -> Any:
    """The JSON value with these texts instead of its own, in the order of `_texts`."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, dict):
        return {key: _with_texts(inner, texts) for key, inner in value.items()}
    return [_with_texts(inner, texts) for inner in value] if isinstance(value, list) else value


# Maps batches to their results, in order.
ExamineAll = Callable[[Iterable[Batch]], Iterator[Examined]]


def examine_here(settings: ExaminerSettings) -> ExamineAll:
    """Examine batches sequentially in this process."""
    return lambda batches: map(examiner(settings), batches)


def examine_in_processes(settings: ExaminerSettings, processes: int) -> ExamineAll:
    """Examine several batches at once, each in its own process; results come in the batches' order."""
    return lambda batches: map_in_processes(partial(examiner, settings), batches, processes)


def examiner(settings: ExaminerSettings) -> Callable[[Batch], Examined]:
    """A function that examines a batch."""
    return Examiner(settings).examine


def gather(
    source: Source, url: str, examine: ExamineAll, shard_size: int, progress: Callable[[int], None]
) -> None:
    """Fill a source's pool folder, or resume an earlier call. A shard is `shard_size` rows.

    `progress` is called with the number of rows done.
    """
    writer = PromptWriter(url)
    if writer.finished:
        return
    done = writer.shards * shard_size
    progress(done)
    for examined in examine(_batches(source, done, shard_size)):
        rows = len(examined.prompts) + len(examined.rejects)
        write_audit(url, writer.shards, examined.audit)
        writer.write(examined.prompts, examined.rejects, tokens=0)
        done += rows
        progress(done)
    writer.finish()


def _batches(source: Source, skip: int, size: int) -> Iterator[Batch]:
    rows = source.records(skip)
    while batch := list(islice(rows, size)):
        yield Batch(batch, source.name, source.licence)
