"""The report's blocks about the data, the training, the stages, and sample answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fledge.base.console import human_bytes
from fledge.bench.report import figures
from fledge.bench.report.facts import DataFacts, TrainingFacts
from fledge.bench.report.formats import Bar, clock, human_count, number, percent, times
from fledge.bench.report.speed import Naming
from fledge.bench.results import BenchResult, Sample


@dataclass(frozen=True)
class Tile:
    """One figure with its caption."""

    figure: str
    caption: str


@dataclass(frozen=True)
class DataView:
    """The training data of this run's head."""

    tiles: list[Tile]
    categories: list[Bar]
    rejected: list[Bar]
    source: str


@dataclass(frozen=True)
class TrainingView:
    """The course of its training."""

    tiles: list[Tile]
    loss: str  # SVG
    tau: str  # SVG
    note: str  # what the line across the curves means


@dataclass(frozen=True)
class SampleView:
    """One answer, its tokens coloured by their draft depth."""

    by: str
    category: str
    question: str
    pieces: list[tuple[str, str, str]]  # (text, CSS class, tooltip)
    tau: str
    speedup: str
    drafted: str  # share of tokens that came from the head


def plain_bars(bench: BenchResult | None) -> list[Bar]:
    """Plain decode next to the time of reading the weights once."""
    if bench is None or bench.plain is None or not bench.plain.limit_ms_per_token:
        return []
    step, limit = bench.plain.ms_per_token, bench.plain.limit_ms_per_token
    longest = max(step, limit)
    read = human_bytes(bench.plain.weight_bytes)
    return [
        Bar("plain decode", "s-plain", f"{step:.1f} ms per token", 100 * step / longest),
        Bar("limit", "s-limit", f"{limit:.1f} ms to read {read} of weights", 100 * limit / longest),
    ]


def sample_views(bench: BenchResult | None, naming: Naming) -> list[SampleView]:
    """The samples of the best head that has any."""
    if bench is None or not bench.samples:
        return []
    heads = [head for head in bench.heads if any(sample.head == head for sample in bench.samples)]
    by_tau = {head: max(sample.tau for sample in bench.samples if sample.head == head) for head in heads}
    best = max(heads, key=lambda head: by_tau[head])
    return [_sample_view(sample, naming) for sample in bench.samples if sample.head == best]


def stage_bars(stages: Mapping[str, float]) -> list[Bar]:
    """The duration of each stage."""
    longest = max([1e-9, *stages.values()])
    return [Bar(name, "s-stage", clock(seconds), 100 * seconds / longest) for name, seconds in stages.items()]


def data_view(data: DataFacts | None) -> DataView | None:
    """View of the data that the head was trained on."""
    if data is None:
        return None
    tiles = [
        Tile(human_count(data.conversations), "conversations"),
        Tile(human_count(data.response_tokens), "response tokens, written by the target itself"),
    ]
    if data.heldout:
        tiles.append(Tile(human_count(data.heldout), "conversations held out"))
    if data.coverage is not None:
        size = f"{human_count(data.draft_vocabulary)} tokens " if data.draft_vocabulary else ""
        tiles.append(Tile(percent(data.coverage, 1), f"of them within the draft vocabulary's {size}".strip()))
    if data.greedy_share is not None:
        tiles.append(Tile(percent(data.greedy_share), "answered greedily, the others sampled"))
    return DataView(tiles, _shares(data.categories), _shares(data.rejected), data.source)


def _shares(counts: Mapping[str, int]) -> list[Bar]:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    top = max([1, *counts.values()])
    return [
        Bar(name.replace("_", " "), "s-stage", human_count(count), 100 * count / top)
        for name, count in ordered
    ]


def training_view(training: TrainingFacts | None) -> TrainingView | None:
    """View of the head's training."""
    if training is None:
        return None
    tiles = []
    if training.tokens:
        tiles.append(Tile(human_count(training.tokens), "tokens trained on, epochs included"))
    if training.steps:
        epochs = f" in {training.epochs:.3g} epochs" if training.epochs else ""
        tiles.append(Tile(human_count(training.steps), f"steps{epochs}"))
    if training.seconds:
        tiles.append(Tile(clock(training.seconds), "of training"))
    if training.parameters:
        tiles.append(Tile(human_count(training.parameters), "parameters in the head"))
    if training.head_bytes:
        tiles.append(Tile(human_bytes(training.head_bytes), "on disk"))
    if training.tau:
        tau, where = training.tau[-1][1], "at the end"
        if training.kept:
            tau, where = training.kept[1], f"at step {training.kept[0]:,}, whose weights are the head"
        tiles.append(Tile(number(tau, 2), f"τ of drafted chains {where}, on held-out conversations"))
    marks, note = [], ""
    if training.kept:
        marks = [training.kept[0]]
        note = "The dashed line is where held-out τ was best: the head is as it was there."
    return TrainingView(
        tiles,
        loss=figures.curve_chart(training.loss, "loss", smooth=True, marks=marks),
        tau=figures.curve_chart(training.tau, "held-out τ", y_from=1.0, marks=marks),
        note=note,
    )


def _sample_view(sample: Sample, naming: Naming) -> SampleView:
    pieces = []
    for piece in sample.pieces:
        tip = f"accepted draft, depth {piece.depth}" if piece.depth else "from the target"
        pieces.append((piece.text, f"d{min(piece.depth, 6)}", tip))
    drafted = sum(piece.depth > 0 for piece in sample.pieces) / max(len(sample.pieces), 1)
    label = naming.labels.get(sample.head, sample.head)
    return SampleView(
        by=f"By {label}" if label.startswith("this ") else f"By the {label}",
        category=sample.category,
        question=sample.question,
        pieces=pieces,
        tau=number(sample.tau, 2),
        speedup=times(sample.speedup),
        drafted=percent(drafted),
    )
