"""`summary.json`: a run's figures in one small file, for people's scripts and for CI.

Format 1. Times are milliseconds unless the name says otherwise; a figure that wasn't measured is null or absent.

    version                                      1
    workloads.{name}                             the run's head on each set of prompts
        .prompts                                 answered prompts
        .identical .near_tie .different          outputs against plain decode's; near_tie: they differ where the top two
                                                 logits are within rounding of the target's dtype (never in float32)
        .tau                                     tokens emitted per verify, bonus token included, over all answers
        .tau_by_depth                            [d - 1]: share of drafted rounds whose accepted path reached depth d
        .tpot_plain_ms .tpot_ms                  medians over the prompts
        .speedup                                 median over the prompts of tpot_plain / tpot
        .speedup_low .speedup_high               its 95 % bootstrap interval over the prompts
        .noise                                   median relative spread of a prompt's repeats
        .rejected                                prompts with implausible times (speed-up above tau, ...)
    overall                                      the same over the prompts of all sets together, if there are several
    released.workloads.{name}, released.overall  the same for the head that ships with the package
    without_lookup.workloads.{name}              the run's head again, if it was also measured without prompt lookup
    categories.{name}, released.categories.{name}  the same by category of the own mixed set
    plain.ms_per_token                           plain decode at batch 1, median over the own set's prompts
    plain.share_of_limit                         time of a raw read of the bytes of weights that a token takes / time of
                                                 a plain step: the median over neighbouring pairs, taken in turn
    plain.limit_ms_per_token                     share_of_limit * ms_per_token
    concurrency[]                                as in bench/concurrency.jsonl
    stages.{name}.seconds                        duration of each stage of the run
    target, head, machine, bandwidth, versions   the setup of the measurement
    notes[]                                      what was left out or disturbed, in words
    decoding                                     how the answers' tokens were sampled, in words
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fledge.base.storage import read_json, write_json
from fledge.bench.machine import Bandwidth, Machine
from fledge.bench.results import (
    RELEASED,
    WITHOUT_LOOKUP,
    AnswerRow,
    BenchResult,
    LevelRow,
    Subject,
    validated,
)
from fledge.bench.statistics import bootstrap_median, median_of
from fledge.bench.workloads import OWN_WORKLOAD

SUMMARY_VERSION: Literal[1] = 1
ALL_PROMPTS = "all prompts"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class WorkloadSummary(_Part):
    """One head on one set of prompts, or on one category of it."""

    prompts: int
    identical: int
    near_tie: int
    different: int
    tau: float | None
    tau_by_depth: list[float]
    tpot_plain_ms: float | None
    tpot_ms: float | None
    speedup: float | None
    rejected: int
    speedup_low: float | None = None
    speedup_high: float | None = None
    noise: float | None = None


class HeadSummary(_Part):
    """One head on everything measured."""

    workloads: dict[str, WorkloadSummary]
    categories: dict[str, WorkloadSummary]
    overall: WorkloadSummary | None = None  # of several workloads

    @property
    def lines(self) -> dict[str, WorkloadSummary]:
        """The rows of tables: each workload and, if there are several, all prompts together."""
        return self.workloads | ({ALL_PROMPTS: self.overall} if self.overall else {})


class PlainSummary(_Part):
    """Plain decode at batch 1."""

    ms_per_token: float
    limit_ms_per_token: float | None
    share_of_limit: float | None


class StageSummary(_Part):
    """One stage of the run."""

    seconds: float


class Summary(HeadSummary):
    """The complete file; see the module docstring for each field. Inherited fields are those of the run's own head."""

    version: Literal[1] = SUMMARY_VERSION
    target: Subject
    head: str | None
    released: HeadSummary | None
    without_lookup: HeadSummary | None = None
    plain: PlainSummary | None
    concurrency: list[LevelRow]
    stages: dict[str, StageSummary]
    machine: Machine
    bandwidth: Bandwidth | None
    versions: dict[str, str]
    notes: list[str]
    decoding: str = "greedy"  # how the answers' tokens were sampled, in words

    def save(self, url: str) -> None:
        """Write the file."""
        write_json(url, self.model_dump(mode="json"))

    @classmethod
    def load(cls, url: str) -> Summary:
        """Read the file."""
        return validated(cls, read_json(url), url)


def summarise(result: BenchResult, stage_seconds: Mapping[str, float] | None = None) -> Summary:
    """The summary of a benchmark. The first head is the run's own; one named "released" gets its own part."""
    head = result.heads[0] if result.heads else None
    first = head_summary(result, head) if head else HeadSummary(workloads={}, categories={})
    alone = f"{head}{WITHOUT_LOOKUP}"
    plain = result.plain
    limit = plain.limit_ms_per_token if plain else None
    return Summary(
        target=result.subject,
        head=head,
        workloads=first.workloads,
        categories=first.categories,
        overall=first.overall,
        released=head_summary(result, RELEASED) if RELEASED in result.heads else None,
        without_lookup=head_summary(result, alone) if alone in result.heads else None,
        plain=PlainSummary(
            ms_per_token=plain.ms_per_token,
            limit_ms_per_token=limit,
            share_of_limit=limit / plain.ms_per_token if limit else None,
        )
        if plain
        else None,
        concurrency=result.levels,
        stages={name: StageSummary(seconds=seconds) for name, seconds in (stage_seconds or {}).items()},
        machine=result.machine,
        bandwidth=result.bandwidth,
        versions=result.versions,
        notes=result.notes,
        decoding=result.options.decoding,
    )


def head_summary(result: BenchResult, head: str) -> HeadSummary:
    """A head's figures by workload, over all of them, and by category of the own set."""
    rows = result.rows(head)
    own_rows = [row for row in rows if row.workload == OWN_WORKLOAD]
    workloads = _grouped(rows, lambda row: row.workload)
    return HeadSummary(
        workloads=workloads,
        overall=workload_summary(rows) if len(workloads) > 1 else None,
        categories=_grouped(own_rows, lambda row: row.category),
    )


def workload_summary(rows: list[AnswerRow]) -> WorkloadSummary:
    """Figures of some rows of one head. Rejected rows count as prompts and for tau, but not for times."""
    timed = [row for row in rows if row.rejected is None]
    rounds = sum(row.rounds for row in rows)
    speedups = [row.speedup for row in timed if row.speedup is not None]
    interval = bootstrap_median(speedups) if speedups else None
    return WorkloadSummary(
        prompts=len(rows),
        identical=sum(row.outcome == "identical" for row in rows),
        near_tie=sum(row.outcome == "near_tie" for row in rows),
        different=sum(row.outcome == "different" for row in rows),
        tau=sum(row.round_tokens for row in rows) / rounds if rounds else None,
        tau_by_depth=acceptance_by_depth(rows),
        tpot_plain_ms=median_of(row.tpot_plain_ms for row in timed),
        tpot_ms=median_of(row.tpot_ms for row in timed),
        speedup=interval.value if interval else None,
        rejected=len(rows) - len(timed),
        speedup_low=interval.low if interval else None,
        speedup_high=interval.high if interval else None,
        noise=median_of(row.noise for row in timed),
    )


def acceptance_by_depth(rows: Iterable[AnswerRow]) -> list[float]:
    """[d - 1]: share of drafted rounds whose accepted path reached depth d."""
    rows = list(rows)
    drafted = sum(row.drafted_rounds for row in rows)
    reached = map(sum, zip_longest(*(row.accepted_by_depth for row in rows), fillvalue=0))
    return [count / drafted for count in reached] if drafted else []


def _grouped(rows: list[AnswerRow], key: Callable[[AnswerRow], str]) -> dict[str, WorkloadSummary]:
    names = dict.fromkeys(map(key, rows))
    return {name: workload_summary([row for row in rows if key(row) == name]) for name in names}
