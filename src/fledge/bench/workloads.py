"""Prompts to measure on: the project's own held-out mixed set, and JSONL files of the same format.

One JSON object a line, as the public EAGLE evaluation has it:

    {"question_id": "chat-01", "category": "chat", "turns": ["Hi! ...", "And then?"]}

Other fields (such as `reference`) are allowed and ignored.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fledge.data.sources.files import has_surrogate
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
    name = posixpath.basename(url)
    try:
        text = read_bytes(url).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{url} is not UTF-8 text ({error.reason}); save it as UTF-8 JSON lines") from error
    prompts = parse_prompts(text, url)
    if not prompts:
        raise DataError(f"{url} holds no prompts; write one JSON object with `turns` on each line")
    return Workload(name.split(".")[0] or name, tuple(prompts))


def load_workloads(
    own_prompts: int | None, files: Sequence[str], limit: int | None, sets: Sequence[Workload] = ()
) -> list[Workload]:
    """The own set (0: left out, None: all), `sets` and `files`, each cut to its limit. Names are made unique."""
    found = [own_workload().limited(own_prompts)] if own_prompts != 0 else []
    for workload in (*sets, *map(read_workload, files)):
        name = _unused(workload.name, [w.name for w in found])
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
            value = json.loads(line)
        except ValueError as error:
            raise _malformed(source, number, f"not valid JSON ({error})") from error
        prompts.append(_prompt(value, source, number))
    return prompts


def _prompt(value: Any, source: str, number: int) -> Prompt:
    if not isinstance(value, dict):
        raise _malformed(source, number, f"a JSON object is wanted, not {type(value).__name__}")
    turns = value.get("turns")
    if not isinstance(turns, list) or not turns:
        raise _malformed(source, number, "`turns` must be a list of at least one user turn")
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise _malformed(source, number, "every entry of `turns` must be a text that isn't empty")
    question_id = value.get("question_id", number)
    if not isinstance(question_id, (str, int)):
        raise _malformed(source, number, "`question_id` must be a number or a text")
    category = value.get("category", "general")
    if not isinstance(category, str):
        raise _malformed(source, number, "`category` must be a text")
    if any(map(has_surrogate, (str(question_id), category, *turns))):
        raise _malformed(source, number, "half of a surrogate pair (\\ud800 to \\udfff) is no character")
    return Prompt(str(question_id), category, tuple(turns))


def _malformed(source: str, number: int, problem: str) -> DataError:
    example = '{"question_id": 1, "category": "chat", "turns": ["Hello!"]}'
    return DataError(f"{source}, line {number}: {problem}; write each line like {example}")


def _unused(name: str, taken: Iterable[str]) -> str:
    names = set(taken)
    if name not in names:
        return name
    return next(f"{name}-{n}" for n in range(2, len(names) + 3) if f"{name}-{n}" not in names)
