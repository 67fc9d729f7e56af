"""Each prompt answered by plain decode and by every head in alternation: batch 1, first turns, greedy or sampled.

    prompt 0   plain  head   head   plain      ABBA: drift of the machine affects both equally
    prompt 1   head   plain  plain  head
    ...

A speed-up clearly above tau can't come from speculation, since a round costs at least a plain step: the baseline was
disturbed or is broken. Such a row is rejected, and the report shows why. Sampled answers are compared, too: the same
seed (the prompt's number) gives the same tokens with and without a head.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from statistics import median
from typing import NamedTuple

from fledge.base.console import plural
from fledge.bench.identity import GREEDY, Draw, Identity, compare
from fledge.bench.options import BenchOptions
from fledge.bench.results import PLAIN, AnswerRow, Outcome, Piece, Sample
from fledge.bench.statistics import alternation, relative_noise
from fledge.bench.workloads import Prompt, Workload
from fledge.data.options import Progress
from fledge.engine import Completion, Engine, PhaseSeconds
from fledge.target import Target

# So far above tau a row's speed-up may be noise. A head that is left aside has a tau of 1, and would otherwise lose
# each row in which it happened to be the faster one, and its median with them.
_ABOVE_TAU = 0.3
_WORST: tuple[Outcome, ...] = ("identical", "near_tie", "different")


class Answers(NamedTuple):
    """Results of the alternation."""

    rows: list[AnswerRow]
    samples: list[Sample]
    notes: list[str]


def measure_answers(
    target: Target,
    engines: Mapping[str, Engine],
    workloads: Sequence[Workload],
    options: BenchOptions,
    progress: Progress,
) -> Answers:
    """Answer every prompt with every engine. `engines` contains "plain" and the heads by name."""
    results, heads = Answers([], [], []), [name for name in engines if name != PLAIN]
    total, done = sum(len(workload.prompts) for workload in workloads), 0
    sample_ids = _sample_ids(workloads[0], options.samples) if workloads else set()
    orders = alternation(list(engines), total * options.repeats)
    _warm_up(target, engines, workloads, options)
    for workload in workloads:
        end = time.perf_counter() + (options.max_seconds or math.inf)
        for index, prompt in enumerate(workload.prompts):
            if index and time.perf_counter() > end:
                skipped = len(workload.prompts) - index
                results.notes.append(
                    f"{workload.name}: {plural(skipped, 'prompt')} left out after {options.max_seconds:.0f} s"
                )
                done += skipped
                break
            done += 1
            ids = prompt.token_ids(target)
            if len(ids) + options.max_tokens > target.config.max_position_embeddings:
                results.notes.append(
                    f"{workload.name} {prompt.question_id}: too long for the target, left out"
                )
                continue
            draw = Draw(options.temperature, seed=index)
            runs = _answers(engines, islice(orders, options.repeats), ids, options, draw)
            for head in heads:
                pair = runs[PLAIN], runs[head]
                row = answer_row(target, workload.name, prompt, head, *pair, draw)
                results.rows.append(row)
                if workload is workloads[0] and prompt.question_id in sample_ids:
                    results.samples.append(_sample(target, prompt, row, runs[head][0]))
            progress(done, total, _note(results.rows))
    return results


def answer_row(
    target: Target,
    workload: str,
    prompt: Prompt,
    head: str,
    plain: Sequence[Completion],
    speculative: Sequence[Completion],
    draw: Draw = GREEDY,
) -> AnswerRow:
    """One prompt's row, from the repeats of both engines. The worst repeat decides whether the outputs are equal.

    `draw`: how the tokens were sampled.
    """
    identity = max(
        (compare(target, one, other, draw) for one, other in zip(plain, speculative, strict=True)),
        key=lambda one: _WORST.index(one.outcome),
    )
    stats = speculative[0].stats
    tpot_plain = median(answer.stats.tpot_ms for answer in plain)
    tpot = median(answer.stats.tpot_ms for answer in speculative)
    speedup = tpot_plain / tpot if tpot_plain > 0 and tpot > 0 else None
    return AnswerRow(
        workload=workload,
        question_id=prompt.question_id,
        category=prompt.category,
        head=head,
        prompt_tokens=len(speculative[0].prompt_token_ids),
        tokens=stats.tokens,
        tpot_plain_ms=tpot_plain,
        tpot_ms=tpot,
        ttft_plain_ms=median(answer.stats.ttft_ms for answer in plain),
        ttft_ms=median(answer.stats.ttft_ms for answer in speculative),
        speedup=speedup,
        tau=stats.tau,
        rounds=stats.rounds,
        round_tokens=round(stats.tau * stats.rounds),
        drafted_rounds=stats.drafted_rounds,
        accepted_by_depth=stats.accepted_by_depth,
        phases_ms=_milliseconds(stats.phases),
        outcome=identity.outcome,
        differs_at=identity.position,
        gap=identity.gap,
        rounding=identity.rounding,
        rejected=reason_to_reject(speedup, stats.tau, identity),
        noise=_noise(plain, speculative),
    )


def _milliseconds(phases: PhaseSeconds) -> dict[str, float]:
    return {name: seconds * 1e3 for name, seconds in asdict(phases).items()}


def _noise(*runs: Sequence[Completion]) -> float | None:
    """Relative spread of the repeats, of the engine with the larger one."""
    spreads = [relative_noise([answer.stats.tpot_ms for answer in answers]) for answers in runs]
    return max((spread for spread in spreads if spread is not None), default=None)


def reason_to_reject(speedup: float | None, tau: float, identity: Identity) -> str | None:
    """Why a row's times are implausible; None if they are plausible."""
    if speedup is None:
        return "the answer is too short to have a time per output token"
    if identity.outcome == "different":
        return f"the output differs from plain decode's from token {identity.position} on"
    if speedup > tau + _ABOVE_TAU:
        return f"speed-up {speedup:.2f} exceeds tau {tau:.2f}: the baseline was disturbed or is broken"
    return None


def token_pieces(target: Target, token_ids: Sequence[int], origins: Sequence[int]) -> list[Piece]:
    """Each token's text. A character that spans several tokens is the text of its last one."""
    pieces, shown = [], ""
    for index, depth in enumerate(origins, start=1):
        text = target.tokenizer.decode(token_ids[:index], skip_special_tokens=True)
        if text.endswith("\ufffd"):
            text = shown
        pieces.append(Piece(text=text[len(shown) :], depth=depth))
        shown = text
    return [piece for piece in pieces if piece.text]


def _answers(
    engines: Mapping[str, Engine],
    orders: Iterable[list[str]],
    ids: list[int],
    options: BenchOptions,
    draw: Draw,
) -> dict[str, list[Completion]]:
    """Each engine's answers to one prompt, one per order."""
    runs: dict[str, list[Completion]] = {name: [] for name in engines}
    for names in orders:
        for name in names:
            runs[name] += engines[name].generate([ids], max_tokens=options.max_tokens, **draw._asdict())
    return runs


def _warm_up(
    target: Target, engines: Mapping[str, Engine], workloads: Sequence[Workload], options: BenchOptions
) -> None:
    for prompt in [prompt for workload in workloads for prompt in workload.prompts][: options.warmup]:
        ids = prompt.token_ids(target)
        if len(ids) + options.max_tokens <= target.config.max_position_embeddings:
            _answers(engines, [list(engines)], ids, options, Draw(options.temperature, 0))


def _sample_ids(workload: Workload, count: int) -> set[str]:
    """Prompts whose answers the report shows, spread over the categories."""
    return {prompt.question_id for prompt in workload.limited(count).prompts} if count else set()


def _sample(target: Target, prompt: Prompt, row: AnswerRow, answer: Completion) -> Sample:
    return Sample(
        head=row.head,
        category=prompt.category,
        question=prompt.turns[0],
        pieces=token_pieces(target, answer.token_ids, answer.stats.token_origins),
        tau=row.tau,
        speedup=row.speedup,
    )


def _note(rows: Sequence[AnswerRow]) -> str:
    """The figures so far, for the progress bar."""
    notes = []
    for head in dict.fromkeys(row.head for row in rows):
        speedups = [row.speedup for row in rows if row.head == head and row.speedup and not row.rejected]
        if speedups:
            notes.append(f"{head} {median(speedups):.2f}x")
    return ", ".join(notes)
