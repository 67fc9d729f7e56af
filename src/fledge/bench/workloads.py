"""Prompts to measure on: the project's own sets, data sets and files.

    mixed                                        80 prompts, ten in each of eight categories
    multi_turn  code  mathematics  summarisation  translation  question_answering  long_context      40 prompts each
    dataset:NAME,split=test,count=40             a Hugging Face data set
    FILE.jsonl                                   one JSON object per line, as in the public EAGLE evaluation:

    {"question_id": "chat-01", "category": "chat", "turns": ["Hi! ...", "And then?"], "system": "Be brief."}
    {"messages": [{"role": "system", ...}, {"role": "user", ...}], "tools": [...]}      or another shape of sources

System prompts, tools and `chat_template_kwargs` are kept, and the answer's length (`output_tokens`, `max_tokens`, at
any depth) where a server is measured; answers and other fields (such as `reference`) are ignored.
All own texts were written for this project. A long-context prompt is a folder of notes (the texts of `summarisation`)
with a question about one of them, at any position.
"""

from __future__ import annotations

import json
import logging
import posixpath
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from fledge.base.disk import neighbours
from fledge.base.errors import DataError, did_you_mean
from fledge.base.storage import exists, read_bytes
from fledge.bench.options import BenchOptions
from fledge.bench.requested import answer_lengths, sampling_fields
from fledge.data.sources import Record, SourceOptions, detect_shape, open_source, user_turns
from fledge.data.sources.opening import DEFAULT_CATEGORY
from fledge.data.sources.shapes import UserTurns
from fledge.target import Target

logger = logging.getLogger("fledge")

OWN_WORKLOAD = "mixed"
CATEGORIES = (
    "chat",
    "writing",
    "reasoning",
    "mathematics",
    "code",
    "summarisation",
    "rewriting",
    "extraction",
)
SETS = (
    "multi_turn",
    "code",
    "mathematics",
    "summarisation",
    "translation",
    "question_answering",
    "long_context",
)
_HUB_ROWS = 40
_HUB_KEYS = ("split", "config", "field", "revision", "count")
_FORM = '{"question_id": 1, "category": "chat", "turns": ["Hello!"]}'
_NOTES = 24  # notes in a long-context prompt: about 2,200 words


@dataclass(frozen=True)
class Prompt:
    """One conversation's user turns; the benchmark uses the first."""

    question_id: str
    category: str
    turns: tuple[str, ...]
    system: str | None = None
    tools: str = ""  # JSON: functions on offer
    template_options: str = ""  # JSON: `chat_template_kwargs`
    lengths: tuple[int, ...] = ()  # new tokens of each turn, the last for all after it; empty: not said
    unused: tuple[str, ...] = ()  # fields of the request that aren't sent

    @classmethod
    def of(cls, question_id: str, category: str, found: UserTurns | Record) -> Prompt:
        """A conversation of a source; it ends before a tool's result, which only its own log's call leads to."""
        turns = found.turns
        if (first := next((number for number, step in enumerate(found.results) if step), None)) is not None:
            turns = turns[: first + 1]
        return cls(question_id, category, turns, found.system, found.tools, found.template_options)

    def max_tokens(self, turn: int, default: int) -> int:
        """New tokens that a turn's answer may have."""
        return self.lengths[min(turn, len(self.lengths) - 1)] if self.lengths else default

    @property
    def opening(self) -> list[dict[str, str]]:
        """The messages before the first turn."""
        return [{"role": "system", "content": self.system}] if self.system else []

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation up to its first turn, as chat messages."""
        return [*self.opening, {"role": "user", "content": self.turns[0]}]

    @property
    def extras(self) -> dict[str, Any]:
        """Further fields of a chat request."""
        fields = {"tools": self.tools, "chat_template_kwargs": self.template_options}
        return {name: json.loads(value) for name, value in fields.items() if value}

    def token_ids(self, target: Target) -> list[int]:
        """The target's input ids, as a server renders them."""
        extras = self.extras
        return target.chat.prompt_ids(
            self.messages, options=extras.get("chat_template_kwargs"), tools=extras.get("tools", ())
        )


@dataclass(frozen=True)
class Workload:
    """A named list of prompts, reported together."""

    name: str
    prompts: tuple[Prompt, ...]

    def token_ids(self, target: Target) -> list[list[int]]:
        """The target's input ids for each prompt."""
        return [prompt.token_ids(target) for prompt in self.prompts]

    def limited(self, limit: int | None) -> Workload:
        """At most `limit` prompts, spread evenly over the categories, in the file's order."""
        if limit is not None and limit < 1:
            raise DataError(f"{limit} prompts of {self.name} can't be measured; give at least 1")
        if limit is None or limit >= len(self.prompts):
            return self
        seen: dict[str, int] = {}
        ranked = []
        for index, prompt in enumerate(self.prompts):
            ranked.append((seen.get(prompt.category, 0), index))
            seen[prompt.category] = seen.get(prompt.category, 0) + 1
        chosen = sorted(index for _, index in sorted(ranked)[:limit])
        return Workload(self.name, tuple(self.prompts[index] for index in chosen))


def load_workloads(options: BenchOptions, heldout: Sequence[Workload] = ()) -> list[Workload]:
    """The workloads named in the options, the own mixed set first, each cut to its limit. Names are made unique.

    `heldout`: a run's held-out prompts, once it has them.
    """
    workloads = [own_workload().limited(options.own_prompts)] if options.own_prompts != 0 else []
    workloads += heldout
    for workload in (*map(find_workload, options.sets), *map(read_workload, options.prompts)):
        warn_of_lengths(workload, options.max_tokens)
        used_names = {one.name for one in workloads}
        names = (f"{workload.name}-{n}" if n > 1 else workload.name for n in count(1))
        name = next(name for name in names if name not in used_names)
        workloads.append(Workload(name, workload.limited(options.prompts_limit).prompts))
    if not workloads and not options.heldout_prompts:
        raise DataError(
            "there is nothing to measure on; raise bench.own_prompts, name bench.sets, or a file with --prompts"
        )
    return workloads


def warn_of_lengths(workload: Workload, max_tokens: int) -> None:
    """Log that rows name lengths of answers where one length holds for all."""
    if any(prompt.lengths for prompt in workload.prompts):
        logger.warning(
            "%s: the lengths of answers in its rows aren't used here; every answer has up to %d tokens (max_tokens)",
            workload.name,
            max_tokens,
        )


def find_workload(name: str) -> Workload:
    """The workload with a user's name: one of the own sets, a data set, or a file of `turns`."""
    kind, _, settings = name.partition(":")
    if name == OWN_WORKLOAD:
        return own_workload()
    if name in SETS:
        return own_set(name)
    if kind == "dataset":
        return hub_workload(settings)
    if "/" in name or name.endswith((".jsonl", ".json")):
        return read_workload(name)
    hint = did_you_mean(name, (OWN_WORKLOAD, *SETS))
    raise DataError(
        f"no workload {name!r}; name one of {', '.join((OWN_WORKLOAD, *SETS))}, "
        f"dataset:NAME,split=test, or a file of JSON lines{hint}"
    )


def own_workload() -> Workload:
    """The held-out mixed set that ships with the package: 80 prompts, ten in each of eight categories."""
    prompts: list[Prompt] = []
    for category in CATEGORIES:
        name = f"{category}.jsonl"
        prompts += parse_prompts((_folder() / name).read_text(encoding="utf-8"), name)
    return Workload(OWN_WORKLOAD, tuple(prompts))


def own_set(name: str) -> Workload:
    """One of the project's own sets."""
    prompts = parse_prompts(
        (_folder() / "sets" / f"{name}.jsonl").read_text(encoding="utf-8"), f"{name}.jsonl"
    )
    return Workload(name, tuple(_with_notes(prompts) if name == "long_context" else prompts))


def hub_workload(text: str) -> Workload:
    """The user turns of a data set's first usable rows; `text` is what follows `dataset:`."""
    path, *settings = text.split(",")
    values = dict(setting.partition("=")[::2] for setting in settings)
    unknown = sorted(set(values) - set(_HUB_KEYS))
    count = values.pop("count", str(_HUB_ROWS))
    if not path or unknown or not all(values.values()) or not count.isdigit() or int(count) < 1:
        raise DataError(
            f"dataset:{text} can't be read; write dataset:NAME,count=40 with any of {', '.join(_HUB_KEYS)} as key=value"
        )
    # Measurement prompts are never trained on, so no training terms apply.
    options = SourceOptions.model_validate(
        {"kind": "dataset", "path": path, "training_allowed": True, "system": True, **values}
    )
    source = open_source(options)
    records = (record for record in source.records() if isinstance(record, Record))
    prompts = tuple(
        Prompt.of(str(record.row), record.category, record) for record in islice(records, int(count))
    )
    if not prompts:
        raise DataError(f"no row of {path} has a user turn; name the column with field=")
    return Workload(source.name, prompts)


def read_workload(url: str) -> Workload:
    """The prompts of a JSONL file, named after the file."""
    if not exists(url):
        path = Path(url)
        hint = did_you_mean(path.name, neighbours(path))
        raise DataError(f"there is no prompt file {url}; correct its path{hint}")
    try:
        text = read_bytes(url).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{url} is not UTF-8 text ({error.reason}); save it as UTF-8 JSON lines") from error
    prompts = parse_prompts(text, url)
    if not prompts:
        raise DataError(f"{url} holds no prompts; write one JSON object with `turns` on each line")
    name = posixpath.basename(url)
    return Workload(name.split(".")[0] or name, tuple(prompts))


def parse_prompts(text: str, source: str) -> list[Prompt]:
    """The prompts of JSON lines; `source` names the file in errors. Empty lines are skipped."""
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):  # not at U+2028, which JSON allows
        if not line.strip():
            continue
        place = f"{source}, line {number}"
        row = _json(line)
        lengths, unused = answer_lengths(row, place), sampling_fields(row)
        if (other := _of_another_shape(row, place)) is not None:
            prompt = Prompt.of(str(number), other.category or DEFAULT_CATEGORY, other)
            prompts.append(replace(prompt, lengths=lengths, unused=unused))
            continue
        try:
            parsed = _Line.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            field = "".join(f"{part}: " for part in first["loc"])
            wrong = f"{field}{first['msg']}"
            if isinstance(row, dict) and lengths and not row.get("turns"):
                wrong = f"there are lengths but no text to send ({', '.join(map(str, row))})"
            raise DataError(f"{place}: {wrong}; write each line like {_FORM}") from error
        question_id = number if parsed.question_id is None else parsed.question_id
        found = user_turns(row, "turns")
        context = Prompt("", "", ()) if isinstance(found, str) else Prompt.of("", "", found)
        prompts.append(
            replace(
                context,
                question_id=str(question_id),
                category=parsed.category,
                turns=parsed.turns,
                lengths=lengths,
                unused=unused,
            )
        )
    return prompts


def _json(line: str) -> Any:
    """A line's value; None, which is no row, if it isn't JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _of_another_shape(row: Any, place: str) -> UserTurns | None:
    """A row in a shape of sources; None for one with a list of texts as `turns`, and for what has no shape."""
    shape = detect_shape([row]) if isinstance(row, dict) else None
    if shape is None or shape == "turns":
        return None
    found = user_turns(row, shape)
    if isinstance(found, str):
        raise DataError(f"{place}: there is no turn of a user ({found}); correct or remove it")
    return found


class _Line(BaseModel):
    question_id: str | int | None = None
    category: str = "general"
    turns: tuple[Annotated[str, Field(pattern=r"\S")], ...] = Field(min_length=1)


def _with_notes(prompts: list[Prompt]) -> list[Prompt]:
    """Each question after a folder of notes that contains the answer."""
    notes = [prompt.turns[0].partition("\n\n")[2] for prompt in own_set("summarisation").prompts]
    out = []
    for index, prompt in enumerate(prompts):
        # crc32, not hash(): the same notes on every machine.
        generator = random.Random(zlib.crc32(prompt.question_id.encode()))
        chosen = generator.sample([n for n in range(len(notes)) if n != index], _NOTES - 1)
        chosen.insert(generator.randrange(_NOTES), index)
        text = "\n\n".join(f"Note {place}\n{notes[n]}" for place, n in enumerate(chosen, start=1))
        question = f"{text}\n\nAnswer with the help of the notes above. {prompt.turns[0]}"
        out.append(Prompt(prompt.question_id, prompt.category, (question,)))
    return out


def _folder() -> Traversable:
    return resources.files("fledge.bench") / "prompts"
