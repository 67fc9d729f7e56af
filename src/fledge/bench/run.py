"""The benchmark from end to end.

bandwidth (beside plain steps) -> answers (plain and heads in alternation) -> concurrency
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import median
from typing import NamedTuple

from torch import Tensor

from fledge.base.errors import DataError, EngineError
from fledge.bench.answers import Answers, measure_answers
from fledge.bench.concurrency import Load, longest_answer, sweep
from fledge.bench.machine import Bandwidth, machine_facts, measure_bandwidth, versions
from fledge.bench.options import BenchOptions
from fledge.bench.results import (
    PLAIN,
    RANDOM,
    WITHOUT_LOOKUP,
    BenchResult,
    LevelRow,
    PlainDecode,
    Subject,
)
from fledge.bench.workloads import Workload, load_workloads
from fledge.data.options import Progress, silent
from fledge.engine import Engine, TreeShape
from fledge.engine.build import refuse_unfit
from fledge.engine.options import EngineOptions
from fledge.heads import Head
from fledge.target import Target
from fledge.target.cpu import NativeDecoder
from fledge.train.start import random_head

# Spare context per request beyond prompt and answer, so that no engine ends an answer early.
_MARGIN = 8
_STEPS = 8  # tokens of a plain answer beside reads of memory
_PER_SLOT = (
    2  # requests of the sweep: it should take minutes; `python -m benchmarks.ratios` uses twice as many
)


def run_bench(
    target: Target,
    heads: Mapping[str, Head],
    options: BenchOptions | None = None,
    *,
    heldout: Sequence[Workload] = (),
    tree: TreeShape | None = None,
    progress: Progress = silent,
) -> BenchResult:
    """Measure a target without and with each head.

    Args:
        heads: by name, the run's own first (`{"trained": head, "released": released}`); {} measures plain decode only.
        heldout: a run's held-out prompts, to be measured on as well.
        tree: the draft tree of every round; None: the engine's planner chooses.
        progress: called as `progress(done, total, note)`.
    """
    options = options or BenchOptions()
    if PLAIN in heads:
        raise EngineError(
            f'a head can\'t be called "{PLAIN}", which names the baseline; give it another name'
        )
    begin = time.perf_counter()
    workloads = load_workloads(options, heldout)
    work = _work(workloads, options, len(heads))
    bytes_read = weight_bytes(target)
    device = target.decoder.device
    bandwidth = _bandwidth(target, workloads[0], options, bytes_read) if options.bandwidth else None

    variants = _variants(heads, options)
    answers = Answers([], [], [])
    if heads:
        engines = _engines(target, variants, tree, workloads, options, 1, options.max_tokens)
        shown = _partial(progress, 0.0, work.answers, sum(work))
        answers = measure_answers(target, engines, workloads, options, shown)
        del engines

    levels: list[LevelRow] = []
    if options.concurrency:
        swept = {name: variants[name] for name in heads}
        if options.random_head and heads:
            swept[RANDOM] = random_head(target, next(iter(heads.values())).vocabulary), options.lookup
        slots, tokens = max(options.concurrency), longest_answer(options.sweep_tokens)
        engines = _engines(target, swept, tree, workloads[:1], options, slots, tokens)
        prompts = _fitting_prompts(target, workloads[0], tokens)
        shown = _partial(progress, work.answers, work.sweep, sum(work))
        levels = list(chain(*sweep(engines, prompts, options.concurrency, _load(options), shown)))
    return BenchResult(
        subject=Subject(
            target=target.name,
            revision=target.revision,
            dtype=str(target.decoder.dtype).removeprefix("torch."),
            quantization=target.quantization,
            device=str(device),
            backend=target.backend,
            tree=str(tree) if tree else "adaptive",
        ),
        heads=list(variants),
        answers=answers.rows,
        levels=levels,
        samples=answers.samples,
        plain=_plain_decode(answers, levels, bytes_read, bandwidth),
        bandwidth=bandwidth,
        machine=machine_facts(device),
        versions=versions(),
        options=options,
        seconds=time.perf_counter() - begin,
        notes=answers.notes,
    )


def estimate_seconds(options: BenchOptions, heads: int, ms_per_token: float) -> float:
    """Approximate duration of a benchmark if a plain step takes `ms_per_token`."""
    work = _work(load_workloads(options), options, heads, heldout=options.heldout_prompts)
    tokens = work.answers * options.max_tokens + work.sweep * options.sweep_tokens
    return 15.0 + tokens * ms_per_token / 1e3


def refuse_impossible(target: Target, options: BenchOptions) -> None:
    """Raise early what `run_bench` would raise later: prompts too long for the target, or a missing GPU."""
    workloads = load_workloads(options)
    for workload in workloads:
        _fitting_prompts(target, workload, options.max_tokens)
    if options.concurrency and workloads:
        _fitting_prompts(target, workloads[0], longest_answer(options.sweep_tokens))
    refuse_unfit(target, EngineOptions(overlap=options.overlap, cuda_graphs=options.cuda_graphs))


def weight_bytes(target: Target) -> int:
    """Bytes of weights a greedy plain step reads: as the kernels report, else all but embedding and idle experts."""
    if isinstance(target.decoder, NativeDecoder):
        return target.decoder.weight_bytes_per_token
    weights = target.weights
    total: float = weights.norm.nbytes + weights.lm_head.nbytes
    for layer in weights.layers:
        total += sum(part.nbytes for part in vars(layer).values() if isinstance(part, Tensor))
        if layer.experts and target.config.experts:
            chosen = target.config.experts.per_token / target.config.experts.count
            total += layer.experts.router.nbytes
            total += chosen * (layer.experts.gate_up.nbytes + layer.experts.down.nbytes)
    return round(total)


class _Work(NamedTuple):
    """Duration of the benchmark's two long parts, in plain answers at batch 1 of the part's own length."""

    answers: float
    sweep: float


def _work(workloads: Sequence[Workload], options: BenchOptions, heads: int, heldout: int = 0) -> _Work:
    """`heldout`: prompts of the run that aren't among the workloads yet."""
    prompts = sum(len(workload.prompts) for workload in workloads) + heldout + options.warmup
    engines = 1 + heads + options.without_lookup  # as if no head paid
    # A level of c requests in flight answers 2c of them, with a cost per step that grows slowly with c.
    load = _load(options)
    sweep_units = sum(
        max(load.fewest, load.per_slot * level) / level * (1 + 0.1 * level) for level in options.concurrency
    )
    sweep_units *= (load.repeats + 0.5) * (1 + heads + (options.random_head and heads > 0))
    return _Work(prompts * options.repeats * engines if heads else 0.0, sweep_units)


def _load(options: BenchOptions) -> Load:
    return Load(
        options.sweep_tokens, options.sweep_repeats, options.sweep_requests, _PER_SLOT, options.temperature
    )


def _partial(progress: Progress, before: float, size: float, total: float) -> Progress:
    """The progress function of a part of `size` out of `total`, after `before`."""
    return lambda done, of, note: progress(before + size * done / of, total, note)


def _variants(heads: Mapping[str, Head], options: BenchOptions) -> dict[str, tuple[Head, int | None]]:
    """Variants measured against plain decode, by name: a head, and how many tokens lookup may add to its trees."""
    named: dict[str, tuple[Head, int | None]] = {name: (head, options.lookup) for name, head in heads.items()}
    if options.without_lookup and heads:
        name, head = next(iter(heads.items()))
        named[f"{name}{WITHOUT_LOOKUP}"] = head, 0
    return named


def _engines(
    target: Target,
    variants: Mapping[str, tuple[Head, int | None]],
    tree: TreeShape | None,
    workloads: Sequence[Workload],
    options: BenchOptions,
    max_batch: int,
    max_tokens: int,
) -> dict[str, Engine]:
    """Plain decode, then one engine per variant, with room for the longest prompt that fits the target."""
    prompts = (_fitting_prompts(target, workload, max_tokens) for workload in workloads)
    longest = max(len(ids) for fitting in prompts for ids in fitting)
    context = min(longest + max_tokens + _MARGIN, target.config.max_position_embeddings)

    def engine(head: Head | None, lookup: int | None) -> Engine:
        return Engine(
            target,
            head,
            max_batch=max_batch,
            max_context=context,
            tree=tree if head else None,
            lookup=lookup,
            prefix_cache=False,  # prompts are repeated: it would hide the cost of their prefill
            draft_weights=options.draft_weights if head else None,
            overlap=options.overlap,
            cuda_graphs=options.cuda_graphs,
        )

    return {PLAIN: engine(None, None), **{name: engine(*variant) for name, variant in variants.items()}}


def _bandwidth(target: Target, workload: Workload, options: BenchOptions, bytes_read: int) -> Bandwidth:
    """Raw reads in turn with the first tokens of a plain answer."""
    prompt = _fitting_prompts(target, workload, _STEPS)[0]
    engine = _engines(target, {}, None, [workload], options, 1, _STEPS)[PLAIN]

    def step() -> float:
        (answer,) = engine.generate([prompt], max_tokens=_STEPS, ignore_eos=True)
        return answer.stats.tpot_ms / 1e3

    return measure_bandwidth(bytes_read, step, target.decoder.device)


def _fitting_prompts(target: Target, workload: Workload, max_tokens: int) -> list[list[int]]:
    fitting = [
        ids
        for ids in workload.token_ids(target)
        if len(ids) + max_tokens <= target.config.max_position_embeddings
    ]
    if not fitting:
        raise DataError(
            f"every prompt of {workload.name} is too long for {max_tokens} new tokens in the target's "
            f"{target.config.max_position_embeddings} positions; lower bench.max_tokens and bench.sweep_tokens, "
            "or use shorter prompts"
        )
    return fitting


def _plain_decode(
    answers: Answers,
    levels: Sequence[LevelRow],
    bytes_read: int,
    bandwidth: Bandwidth | None,
) -> PlainDecode | None:
    """Plain decode at batch 1: from the first workload's answers, else from the sweep."""
    first = [
        row
        for row in answers.rows
        if row.workload == answers.rows[0].workload and row.head == answers.rows[0].head
    ]
    answered = [row.tpot_plain_ms for row in first if row.tpot_plain_ms > 0]
    alone = [row.median_tpot_ms for row in levels if row.engine == PLAIN and row.concurrency == 1]
    times = answered or alone
    if not times:
        return None
    took, share = median(times), bandwidth.plain_share if bandwidth else None
    return PlainDecode(ms_per_token=took, weight_bytes=bytes_read, limit_ms_per_token=share and share * took)
