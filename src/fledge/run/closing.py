"""The end of a run: `report.html`, `summary.json`, and the tables printed last."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from fledge.base import storage
from fledge.base.console import print_table, say
from fledge.base.errors import DataError
from fledge.base.storage import join
from fledge.bench import RELEASED, BenchResult, Summary, summarise
from fledge.bench.load import LoadResult
from fledge.bench.report import ReportFacts, data_facts, training_facts, write_report
from fledge.bench.report.formats import clock, number, times
from fledge.bench.report.served import served_view
from fledge.bench.report.speed import name_engines
from fledge.bench.summary import WorkloadSummary
from fledge.data.card import make_card, privacy_counts, write_card
from fledge.heads import Head
from fledge.heads.checkpoint import CONFIG_NAME
from fledge.run.folder import Record, Run, file_digest
from fledge.run.outcome import outcome, serve_command
from fledge.run.recipe import RECIPE_NAME, read_recipe_file

REPORT_NAME, SUMMARY_NAME = "report.html", "summary.json"


def write_closing(run: Run, records: Iterable[Record]) -> None:
    """Write the report, and the summary if there is a benchmark of the run's head."""
    seconds = {record.stage: record.seconds for record in records}
    facts = report_facts(run, seconds)
    if facts.bench is not None:
        summarise(facts.bench, seconds).save(run.url(SUMMARY_NAME))
    else:
        storage.remove(run.url(SUMMARY_NAME))  # left by a deleted benchmark or an earlier head
    if storage.exists(run.url("prompts", storage.MANIFEST_NAME)):
        write_run_card(run.folder)
    write_report(run.url(REPORT_NAME), facts)
    say(*facts.notes)


def report_facts(run: Run, seconds: Mapping[str, float]) -> ReportFacts:
    """The contents of a run's report; `seconds` is the duration of each stage.

    The report shows the recipe the run was made with, not the one it is reported with.
    """
    head = training_facts(run.url("head"), run.url("train", "metrics.jsonl"))
    bench = BenchResult.load(run.url("bench")) if storage.exists(run.url("bench", "bench.json")) else None
    load = _checked_load(run.folder) if storage.exists(run.url("load", "load.json")) else None
    saved = run.url(RECIPE_NAME)
    recipe = read_recipe_file(saved) if storage.exists(saved) else run.recipe.to_yaml()
    data = data_facts(run.url("conversations"), run.url("prompts"), _own_head(run.folder))
    if bench is not None:  # then the target needn't be loaded
        name = bench.subject.target
    elif load is not None and head is None and data is None:  # only servers, whose target no recipe names
        name, recipe = next(iter(load.models.values())), ""
    else:
        name = run.target.name
    outdated = run.of_earlier_head("bench")
    left_out = f"{run.url('bench')} is of an earlier head and left out; delete it and run `fledge bench`"
    return ReportFacts(
        target=name,
        bench=None if outdated else bench,
        load=load,
        data=data,
        training=head,
        stages=seconds,
        commands=[run.command] if run.command else [],
        serve=serve_command(run) if head is not None else "",
        recipe=recipe,
        note=run.recipe.note,
        notes=[left_out] if outdated else [],
        created=time.strftime("%Y-%m-%d %H:%M %Z"),
    )


def keep_load(result: LoadResult, folder: str) -> None:
    """Save a load test that ended early, since it may have taken hours."""
    _save_load(result, folder)
    say(f"measured until then: {join(folder, 'load')}")


def close_load(result: LoadResult, folder: str, command: str) -> None:
    """Save and print a load test; write its page, too, unless the folder contains a run's more complete page."""
    _save_load(result, folder)
    view = served_view(result)
    if view is not None:
        print_table("Medians over the repeats", *view.table, text_columns=2)
        say(*view.verdicts, *view.notes)
    page = join(folder, REPORT_NAME)
    if storage.exists(join(folder, SUMMARY_NAME)):
        line = f"{page} is a run's: `fledge report --run-dir {folder}` adds this to it"
    else:
        target = next(iter(result.models.values()))
        created = time.strftime("%Y-%m-%d %H:%M %Z")
        write_report(page, ReportFacts(target, load=result, commands=[command], created=created))
        line = f"report: {page}"
    say(line)


def _save_load(result: LoadResult, folder: str) -> None:
    """Write a load test with its checksums."""
    place = join(folder, "load")
    result.save(place)
    files = {name: file_digest(join(folder, name)) for name in ("load/load.json", "load/load.jsonl")}
    Record("bench server", "", 0.0, "", {}, files=files).save(place)


def _checked_load(folder: str) -> LoadResult:
    """A folder's load test, if its files are unchanged since `fledge bench server` wrote them."""
    if (record := Record.load(join(folder, "load"))) is not None:
        record.is_whole(folder)
    return LoadResult.load(join(folder, "load"))


def print_closing(run: Run, records: Iterable[Record]) -> None:
    """Print what each stage did, and what the heads are worth."""
    rows = [(record.stage, record.line, clock(record.seconds)) for record in records]
    print_table("Stages", ["stage", "result", "time"], rows, text_columns=2)
    summary = Summary.load(run.url(SUMMARY_NAME)) if storage.exists(run.url(SUMMARY_NAME)) else None
    if summary is not None:
        print_summary(summary)
    if run.recipe.note:
        say(run.recipe.note)
    say(f"report: {run.url(REPORT_NAME)}", *outcome(run, summary))


def print_summary(summary: Summary) -> None:
    """Print each head on each workload, then plain decode against its limit."""
    heads = {summary.head: summary.lines} if summary.head else {}
    if summary.released is not None:
        heads[RELEASED] = summary.released.lines
    labels = name_engines(list(heads)).labels
    rows = [
        _workload_row(labels[head], workload, row)
        for head, workloads in heads.items()
        for workload, row in workloads.items()
    ]
    columns = ["head", "workload", "tau", "plain", "ms", "speed-up", "same"]
    title = f"{summary.decoding.capitalize()}, batch 1: median ms per output token, plainly and with the head"
    print_table(title, columns, rows, text_columns=2)
    if summary.plain is not None:
        line = f"plain decode: {summary.plain.ms_per_token:.1f} ms per token"
        limit, share = summary.plain.limit_ms_per_token, summary.plain.share_of_limit
        if limit is not None and share is not None:
            line += f"; reading the weights once takes {limit:.1f} ms, so it runs at {share:.2f} of the limit"
        say(line)


def _workload_row(label: str, workload: str, row: WorkloadSummary) -> list[str]:
    figures = [number(row.tau, 2), number(row.tpot_plain_ms), number(row.tpot_ms), times(row.speedup)]
    same = f"{row.identical} of {row.prompts}"
    for count, what in ((row.near_tie, "near tie"), (row.different, "different")):
        # Rare, so no separate columns: the table fits into 80 characters.
        same += f", {count} {what}" if count else ""
    return [label, workload, *figures, same]


def write_run_card(folder: str) -> str:
    """Write the data card of a run folder beside its data; returns its path.

    Raises:
        DataError: the folder has no prompts yet.
    """
    prompts = join(folder, "prompts")
    if not storage.exists(join(prompts, storage.MANIFEST_NAME)):
        raise DataError(f"{folder} has no prompts yet; run `fledge prompts` first or name another --run-dir")
    head = _own_head(folder)
    vocabulary = head.vocabulary.token_ids.tolist() if head else None
    conversations = join(folder, "conversations")
    counts = privacy_counts(prompts, conversations)
    return write_card(folder, make_card(prompts, conversations, vocabulary, counts))


def _own_head(folder: str) -> Head | None:
    """The head in a run folder, or None before training has written one."""
    url = join(folder, "head")
    return Head.load(url) if storage.exists(join(url, CONFIG_NAME)) else None
