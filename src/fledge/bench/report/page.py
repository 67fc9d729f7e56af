"""All blocks of the report, in the order of the page."""

from __future__ import annotations

from dataclasses import dataclass

from fledge.bench.report import figures, money, speed, story
from fledge.bench.report.facts import ReportFacts
from fledge.bench.report.limits import LimitView, ShapeView, limit_views, shape_views
from fledge.bench.report.served import ServedView, served_view
from fledge.bench.report.timeline import Lane, timeline
from fledge.bench.results import PLAIN, RELEASED, TRAINED, LevelRow
from fledge.bench.summary import acceptance_by_depth, head_summary


@dataclass(frozen=True)
class Page:
    """What the template lays out. Empty lists and texts leave their block out."""

    facts: ReportFacts
    target: str
    headline: str
    naming: speed.Naming
    heads: list[str]
    engines: list[str]
    heroes: list[speed.Hero]
    workloads: list[speed.BarGroup]
    categories: list[speed.BarGroup]
    baseline: float  # where 1× lies on the scale of both, 0 to 100
    workload_rows: list[speed.WorkloadRow]
    tpot_chart: str
    throughput_chart: str
    ttft_chart: str
    load_note: str
    levels: list[LevelRow]
    depth_chart: str
    rounds: list[story.RoundView]
    timeline: list[Lane]
    limits: list[LimitView]
    shapes: list[ShapeView]
    costs: list[speed.BarGroup]
    served: ServedView | None
    plain_bars: list[speed.Bar]
    verify_chart: str
    data: list[story.DataView]
    training: list[story.TrainingView]
    samples: list[story.SampleView]
    rejected: list[str]
    near_ties: list[str]
    stages: list[speed.Bar]
    stage_total: float


def make_page(facts: ReportFacts) -> Page:
    """Work out the whole report."""
    bench = facts.bench
    heads = list(bench.heads) if bench else []
    named = heads or [name for name, part in ((TRAINED, facts.training), (RELEASED, facts.released)) if part]
    naming = speed.name_engines(named, facts.labels)
    summaries = {head: head_summary(bench, head) for head in heads} if bench else {}
    workloads = {head: summary.lines for head, summary in summaries.items()}
    categories = {head: summary.categories for head, summary in summaries.items()}
    scale = speed.scale_of([workloads, categories])
    heroes = speed.make_heroes(bench, naming)
    levels = bench.levels if bench else []
    costs = bench.costs if bench else None
    by_depth = {head: acceptance_by_depth(bench.rows(head)) for head in heads} if bench else {}
    return Page(
        facts=facts,
        target=facts.target.rstrip("/").rsplit("/", 1)[-1],
        headline=speed.headline(heroes) if bench or not facts.load else speed.served_headline(facts.load),
        naming=naming,
        heads=heads,
        engines=[PLAIN, *heads],
        heroes=heroes,
        workloads=speed.bar_groups(workloads, naming, scale, speed.workload_title),
        categories=speed.bar_groups(categories, naming, scale, str.capitalize),
        baseline=100 / scale,
        workload_rows=speed.workload_rows(workloads, naming),
        tpot_chart=figures.load_chart(levels, naming.labels, naming.styles, "median_tpot_ms"),
        throughput_chart=figures.load_chart(levels, naming.labels, naming.styles, "output_throughput"),
        ttft_chart=figures.load_chart(levels, naming.labels, naming.styles, "median_ttft_ms"),
        load_note=speed.load_note(levels, heads, naming),
        levels=levels,
        depth_chart=figures.depth_chart(by_depth, naming.labels, naming.styles),
        rounds=story.round_views(bench, naming),
        timeline=timeline(bench, naming),
        limits=limit_views(bench, naming),
        shapes=shape_views(bench, naming),
        costs=money.cost_groups(bench, naming),
        served=served_view(facts.load),
        plain_bars=story.plain_bars(bench),
        verify_chart=figures.verify_chart(costs) if costs and costs.verify else "",
        data=story.data_views(facts, naming),
        training=story.training_views(facts, naming),
        samples=story.sample_views(bench, naming),
        rejected=speed.rejected_rows(bench, naming),
        near_ties=speed.near_tie_rows(bench, naming),
        stages=story.stage_bars(facts.stages),
        stage_total=sum(facts.stages.values()),
    )
