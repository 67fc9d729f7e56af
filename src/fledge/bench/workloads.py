"""Prompts to measure on: the project's own held-out mixed set, and JSONL files of the same format.

One JSON object a line, as the public EAGLE evaluation has it:

    {"question_id": "chat-01", "category": "chat", "turns": ["Hi! ...", "And then?"]}

Other fields (such as `reference`) are allowed and ignored.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import count
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from fledge.errors import DataError
from fledge.storage import exists, read_bytes

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


@dataclass(frozen=True)
class Prompt:
    """One conversation's user turns; the benchmark asks the first."""

    question_id: str
    category: str
    turns: tuple[str, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The first turn as chat messages."""
        return [{"role": "user", "content": self.turns[0]}]


@dataclass(frozen=True)
class Workload:
    """A named list of prompts; its figures are reported together."""

    name: str
    prompts: tuple[Prompt, ...]

    def limited(self, limit: int | None) -> Workload:
        """At most `limit` prompts, spread evenly over the categories, in the file's order."""
        if limit is not None and limit < 1:
            raise DataError(f"{limit} prompts of {self.name} are nothing to measure; give at least 1")
        if limit is None or limit >= len(self.prompts):
            return self
        seen: dict[str, int] = {}
        ranked = []
        for index, prompt in enumerate(self.prompts):
            ranked.append((seen.get(prompt.category, 0), index))
            seen[prompt.category] = seen.get(prompt.category, 0) + 1
        chosen = sorted(index for _, index in sorted(ranked)[:limit])
        return Workload(self.name, tuple(self.prompts[index] for index in chosen))


def own_workload() -> Workload:
    """The held-out mixed set that ships with the package: 80 prompts, ten in each of eight categories."""
    folder = resources.files("fledge.bench") / "prompts"
    prompts: list[Prompt] = []
    for category in CATEGORIES:
        name = f"{category}.jsonl"
        prompts += parse_prompts((folder / name).read_text(encoding="utf-8"), name)
    return Workload(OWN_WORKLOAD, tuple(prompts))


def read_workload(url: str) -> Workload:
    """The prompts of a JSONL file, named after the file."""
    if not exists(url):
        raise DataError(f"there is no file {url} to take prompts from; correct its path")
    try:
        text = read_bytes(url).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{url} is not UTF-8 text ({error.reason}); save it as UTF-8 JSON lines") from error
    prompts = parse_prompts(text, url)
    if not prompts:
        raise DataError(f"{url} holds no prompts; write one JSON object with `turns` on each line")
    name = posixpath.basename(url)
    return Workload(name.split(".")[0] or name, tuple(prompts))


def load_workloads(
    own_prompts: int | None, files: Sequence[str], limit: int | None, sets: Sequence[Workload] = ()
) -> list[Workload]:
    """The own set (0: left out, None: all), `sets` and `files`, each cut to its limit. Names are made unique."""
    found = [own_workload().limited(own_prompts)] if own_prompts != 0 else []
    for workload in (*sets, *map(read_workload, files)):
        taken = {one.name for one in found}
        names = (f"{workload.name}-{n}" if n > 1 else workload.name for n in count(1))
        name = next(name for name in names if name not in taken)
        found.append(Workload(name, workload.limited(limit).prompts))
    if not found:
        raise DataError(
            "there is nothing to measure on; raise bench.own_prompts, name bench.sets, or a file with --prompts"
        )
    return found


def parse_prompts(text: str, source: str) -> list[Prompt]:
    """The prompts of JSON lines; `source` names the file in errors. Empty lines are skipped."""
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):  # not at U+2028, which JSON allows
        if not line.strip():
            continue
        try:
            found = _Line.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"{part}: " for part in first["loc"])
            raise DataError(
                f"{source}, line {number}: {place}{first['msg']}; write each line like "
                '{"question_id": 1, "category": "chat", "turns": ["Hello!"]}'
            ) from error
        question_id = number if found.question_id is None else found.question_id
        prompts.append(Prompt(str(question_id), found.category, found.turns))
    return prompts


class _Line(BaseModel):
    question_id: str | int | None = None
    category: str = "general"
    turns: tuple[Annotated[str, Field(pattern=r"\S")], ...] = Field(min_length=1)
