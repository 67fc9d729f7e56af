"""The results of a benchmark, and its files.

bench/answers.jsonl       one line per prompt and head, against plain decode
bench/concurrency.jsonl   one line per level and engine
bench/bench.json          everything else: samples, machine, versions, options
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from fledge.base.errors import StorageError
from fledge.base.storage import join, read_bytes, read_json, write_atomic, write_json
from fledge.bench.machine import Bandwidth, Machine
from fledge.bench.options import BenchOptions
from fledge.bench.statistics import Interval

FORMAT_VERSION = 1
PLAIN = "plain"  # the name of plain decode among the heads' names
WITHOUT_LOOKUP = " without lookup"  # appended to the name of a head measured without lookup, too
TRAINED = "trained"  # the run's own head
RELEASED = "released"  # the name of the head that ships with the package
RANDOM = "random head"  # with random weights: the cost of the worst head
_Model = TypeVar("_Model", bound=BaseModel)
Outcome = Literal["identical", "near_tie", "different"]


class AnswerRow(BaseModel):
    """One prompt answered plainly and with one head. Times are medians over the repeats."""

    workload: str
    question_id: str
    category: str
    head: str
    prompt_tokens: int
    tokens: int  # in the speculative answer
    tpot_plain_ms: float
    tpot_ms: float
    ttft_plain_ms: float
    ttft_ms: float
    speedup: float | None  # tpot_plain_ms / tpot_ms; None for answers too short to have a TPOT
    tau: float
    rounds: int
    round_tokens: int  # tokens emitted by rounds: tau * rounds
    drafted_rounds: int  # rounds in which a tree was proposed
    accepted_by_depth: list[int]  # [d - 1]: rounds whose accepted path reached depth d
    phases_ms: dict[str, float] = {}  # prefill, draft, verify, accept, extend, host: one answer's time
    outcome: Outcome
    differs_at: int | None = None  # first position of the answer where the two differ
    gap: float | None = None  # how far below the top logit the lower of the two tokens lies there
    rounding: float | None = None  # spacing of numbers of the target's dtype at that logit
    rejected: str | None = None  # why the row's times are implausible
    noise: float | None = None  # relative spread of the repeats; None for a single repeat


class LevelRow(BaseModel):
    """One engine under closed-loop load with `concurrency` requests in flight: medians over the repeats.

    Times are measured on the engine's own clock, which stops during others' turns.
    """

    concurrency: int
    engine: str  # "plain", a head's name or "random head"
    requests: int
    output_tokens: int
    seconds: float
    output_throughput: float  # tokens/s over all requests
    median_tpot_ms: float
    p95_tpot_ms: float
    median_ttft_ms: float
    tau: float
    # Throughput over plain decode's: the median over the repeats, and its interval; None: of answers of equal length
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    repeats: int = 1

    @property
    def over_plain(self) -> Interval | None:
        """The ratio with its interval."""
        if self.ratio is None or self.ratio_low is None or self.ratio_high is None:
            return None
        return Interval(self.ratio, self.ratio_low, self.ratio_high, self.repeats)


class Piece(BaseModel):
    """One token of a sample: its text, and the depth of the accepted draft it came from (0: the target)."""

    text: str
    depth: int


class Sample(BaseModel):
    """One answer, token by token."""

    head: str
    category: str
    question: str
    pieces: list[Piece]
    tau: float
    speedup: float | None


class PlainDecode(BaseModel):
    """Plain decode at batch 1 against the memory's limit."""

    ms_per_token: float
    weight_bytes: int  # read per token
    limit_ms_per_token: float | None  # if weight_bytes were read as fast as raw reads beside plain steps are


class Subject(BaseModel):
    """The measured target and setup."""

    target: str
    revision: str
    dtype: str
    quantization: str | None = None  # of the target's matrices, such as Q4_1; None: plain numbers
    device: str
    backend: str
    tree: str


class BenchResult(BaseModel):
    """All results of a benchmark. `heads` are in the given order; the first is the run's own."""

    subject: Subject
    heads: list[str]
    answers: list[AnswerRow]
    levels: list[LevelRow]
    samples: list[Sample]
    plain: PlainDecode | None
    bandwidth: Bandwidth | None
    machine: Machine
    versions: dict[str, str]
    options: BenchOptions
    seconds: float
    notes: list[str] = []

    def rows(self, head: str, workload: str | None = None) -> list[AnswerRow]:
        """A head's answers, for one workload or all."""
        return [row for row in self.answers if row.head == head and workload in (None, row.workload)]

    def workload_names(self) -> list[str]:
        """Workloads in measurement order."""
        return list(dict.fromkeys(row.workload for row in self.answers))

    def save(self, folder: str) -> None:
        """Write the three files; bench.json last, so that its existence implies a complete result."""
        remaining = self.model_dump(mode="json")
        write_rows(join(folder, "answers.jsonl"), remaining.pop("answers"))
        write_rows(join(folder, "concurrency.jsonl"), remaining.pop("levels"))
        write_json(join(folder, "bench.json"), {"version": FORMAT_VERSION, **remaining})

    @classmethod
    def load(cls, folder: str) -> BenchResult:
        """Read a saved result."""
        url = join(folder, "bench.json")
        value = read_json(url)
        if not isinstance(value, dict) or value.pop("version", None) != FORMAT_VERSION:
            raise StorageError(
                f"{url} is not a benchmark of format {FORMAT_VERSION}; delete it and run `fledge bench` again"
            )
        value["answers"] = read_rows(join(folder, "answers.jsonl"), "fledge bench")
        value["levels"] = read_rows(join(folder, "concurrency.jsonl"), "fledge bench")
        return validated(cls, value, folder)


def write_rows(url: str, rows: Iterable[Any]) -> None:
    """JSON values, one per line."""
    write_atomic(url, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def read_rows(url: str, command: str) -> list[Any]:
    """The values of a JSON lines file that `command` wrote."""
    try:
        return [json.loads(line) for line in read_bytes(url).splitlines() if line]
    except ValueError as error:
        raise StorageError(f"{url} is damaged ({error}); delete it and run `{command}` again") from error


def validated(kind: type[_Model], value: Any, url: str) -> _Model:
    """A result that `fledge bench` wrote to `url`. Raises a StorageError for the first invalid field."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise StorageError(
            f"{url}: {place}: {first['msg']}; delete it and run `fledge bench` again"
        ) from error
