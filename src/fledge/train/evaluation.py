"""The `evaluate` stage: how many tokens a verify would emit on the held-out conversations.

Chains are measured on all of them at once, from the unroll's hits. Tau in serving with given tree shapes is
measured on greedy answers with the engine's own drafting (serving.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from fledge.base.errors import DataError
from fledge.base.storage import join, write_json
from fledge.data.options import Progress, silent
from fledge.engine import TreeShape
from fledge.features import FeatureStore, SampleInfo
from fledge.heads import Head
from fledge.target import Target
from fledge.train.acceptance import Acceptance, DraftRound, Tally, replay
from fledge.train.batches import even_subset, heldout_batches, is_trainable
from fledge.train.feed import FeatureSource, read_batch
from fledge.train.learner import Learner
from fledge.train.options import EvaluateOptions
from fledge.train.serving import ServingReplay
from fledge.train.start import BOTH_SIDES

EVALUATION_NAME = "evaluation.json"
_SHORTEST = 128  # committed lengths up to here share a group


@dataclass(frozen=True)
class Evaluation:
    """Acceptance on held-out conversations: overall and by group."""

    depth: int  # tokens drafted in a row
    conversations: int
    overall: Acceptance
    by_category: dict[str, Acceptance]
    by_temperature: dict[str, Acceptance]
    by_context: dict[str, Acceptance]  # key: upper bound of the committed length
    serving: dict[str, Acceptance]  # key: "depth,topk,nodes" of a tree; greedy answers only


def evaluate(
    target: Target,
    head: Head,
    features_url: str,
    options: EvaluateOptions,
    output_url: str | None,
    progress: Progress = silent,
) -> Evaluation:
    """Measure a head and write evaluation.json (not if `output_url` is None)."""
    head = head.fitted_to(target)
    store = FeatureStore(features_url)
    conversations, rounds = heldout_rounds(target, head, store, options, progress)
    result = Evaluation(
        depth=options.depth,
        conversations=len(conversations),
        overall=Acceptance.of((r for r, _ in rounds), options.depth),
        by_category=_grouped(rounds, options.depth, lambda r, info: info.category),
        by_temperature=_grouped(rounds, options.depth, lambda r, info: f"{info.temperature:g}"),
        by_context=_grouped(rounds, options.depth, lambda r, info: context_bound(r.position)),
        serving=predict_serving(target, head, store, options, progress),
    )
    if output_url is not None:
        write_json(join(output_url, EVALUATION_NAME), asdict(result))
    return result


class HeldoutRounds(NamedTuple):
    """A head's chains on the held-out conversations."""

    conversations: list[SampleInfo]
    rounds: list[tuple[DraftRound, SampleInfo]]  # each with its conversation


def heldout_rounds(
    target: Target, head: Head, store: FeatureStore, options: EvaluateOptions, progress: Progress = silent
) -> HeldoutRounds:
    """All rounds of the held-out conversations. Raises a DataError if there are none."""
    batches = heldout_batches(store, options.batch_tokens, options.max_tokens)
    if not batches:
        raise no_heldout(store.url)
    learner = Learner(head.fitted_to(target), target.ends, compute_dtype(target), target.device)
    heldout = HeldoutRounds([info for batch in batches for info in batch], [])
    total, done, tally = sum(info.tokens for info in heldout.conversations), 0, Tally(options.depth)
    for infos, rounds in measured_batches(learner, store, batches, options.depth):
        heldout.rounds.extend((r, infos[r.sample]) for r in rounds)
        tally.add(rounds)
        done += sum(info.tokens for info in infos)
        progress(done, total, f"tau {tally.acceptance().tau:.2f}")
    return heldout


def no_heldout(url: str) -> DataError:
    """The error for a store without usable held-out conversations."""
    return DataError(f"no held-out conversations in {url}, which evaluating needs; {BOTH_SIDES}")


def predict_serving(
    target: Target, head: Head, store: FeatureStore, options: EvaluateOptions, progress: Progress = silent
) -> dict[str, Acceptance]:
    """Tokens the engine would accept with each of `options.shapes`, by "depth,topk,nodes"."""
    samples = [store.read(info) for info in greedy_heldout(store, options.shape_tokens)]
    acceptances = {}
    for shape in (TreeShape(*shape) for shape in options.shapes if samples):
        if shape.topk <= head.config.draft_vocab_size:
            rounds = ServingReplay(target, head, shape).rounds(samples, progress)
            acceptances[f"{shape.depth},{shape.topk},{shape.nodes}"] = Acceptance.of(rounds, shape.depth)
    return acceptances


def greedy_heldout(store: FeatureStore, max_tokens: int) -> list[SampleInfo]:
    """Evenly spaced held-out conversations that were answered greedily, up to `max_tokens`."""
    usable = [i for i in store.split("heldout") if is_trainable(i) and i.temperature == 0.0]
    return even_subset(usable, max_tokens)


def measured_batches(
    learner: Learner, store: FeatureSource, batches: list[list[SampleInfo]], depth: int
) -> Iterator[tuple[list[SampleInfo], list[DraftRound]]]:
    """The conversations of each batch and the rounds of their answers."""
    outside = ~learner.head.vocabulary.t2d
    for infos in batches:
        batch = read_batch(store, infos, learner.dtype, learner.device)
        if batch is not None:
            yield infos, replay(learner.hits(batch, depth), batch, outside)


def compute_dtype(target: Target) -> torch.dtype:
    """float32 for a float32 target, else bfloat16."""
    return torch.float32 if target.dtype == torch.float32 else torch.bfloat16


def _grouped(
    rounds: Iterable[tuple[DraftRound, SampleInfo]], depth: int, key: Callable[[DraftRound, SampleInfo], Any]
) -> dict[str, Acceptance]:
    groups: dict[str, list[DraftRound]] = {}
    for r, info in rounds:
        groups.setdefault(key(r, info), []).append(r)
    return {name: Acceptance.of(groups[name], depth) for name in sorted(groups, key=by_number)}


def context_bound(position: int) -> str:
    """The next power of two, at least 128."""
    return str(max(_SHORTEST, 1 << (position - 1).bit_length()))


def by_number(name: str) -> tuple[float, str]:
    """Sort key: numbers by value, then words."""
    try:
        return float(name), ""
    except ValueError:
        return math.inf, name
