"""All blocks of the report, in page order."""

from __future__ import annotations

from fledge.bench.report import figures, speed, story
from fledge.bench.report.facts import ReportFacts
from fledge.bench.report.gains import gain_chart, gain_note, level_gains
from fledge.bench.report.rounds import round_groups
from fledge.bench.report.served import served_view
from fledge.bench.statistics import range_note
from fledge.bench.summary import acceptance_by_depth, head_summary


class Page:
    """The template's data. Empty lists and texts leave their block out."""

    def __init__(self, facts: ReportFacts) -> None:
        bench, self.facts = facts.bench, facts
        self.target = facts.target.rstrip("/").rsplit("/", 1)[-1]
        self.numbers = speed.numbers(bench.subject) if bench else ""
        self.heads = list(bench.heads) if bench else []
        self.naming = naming = speed.name_engines(self.heads)

        self.heroes = speed.make_heroes(bench, naming)
        self.headline = speed.headline(self.heroes)
        if facts.load and not bench:
            self.headline = speed.served_headline(facts.load)
        summaries = {head: head_summary(bench, head) for head in self.heads} if bench else {}
        workloads = {head: summary.lines for head, summary in summaries.items()}
        categories = {head: summary.categories for head, summary in summaries.items()}
        scale = speed.scale_of([workloads, categories])
        self.baseline = 100 / scale  # position of 1× on the scale of both, 0 to 100
        self.workloads = speed.bar_groups(workloads, naming, scale, speed.workload_title)
        self.categories = speed.bar_groups(categories, naming, scale, str.capitalize)
        self.workload_table = speed.workload_table(workloads, naming)
        self.rejected = speed.rejected_rows(bench, naming)
        self.near_ties = speed.near_tie_rows(bench, naming)

        self.served = served_view(facts.load)
        levels = bench.levels if bench else []
        self.swept = list(dict.fromkeys(row.engine for row in levels))
        gains = level_gains(levels)
        self.gain_chart, self.gain_note = gain_chart(gains, naming), gain_note(gains, naming)
        self.tpot_chart = figures.load_chart(levels, naming, "median_tpot_ms")
        self.ttft_chart = figures.load_chart(levels, naming, "median_ttft_ms")
        repeats = bench.options.sweep_repeats if bench and self.gain_chart else 0
        self.range_note = range_note(repeats, "bench.sweep_repeats")
        self.level_table = speed.level_table(levels, naming)

        by_depth = {head: acceptance_by_depth(bench.rows(head)) for head in self.heads} if bench else {}
        self.depth_chart = figures.depth_chart(by_depth, naming)
        self.rounds = round_groups(bench, naming)
        self.samples = story.sample_views(bench, naming)
        self.data = story.data_view(facts.data)
        self.training = story.training_view(facts.training)

        self.plain_bars = story.plain_bars(bench)
        self.stages = story.stage_bars(facts.stages)
        self.stage_total = sum(facts.stages.values())
