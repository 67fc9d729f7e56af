"""Training-time test (EAGLE-3, arXiv 2503.01840, sec. 3): the head runs several steps on its own output.

    step    reads at base position p            RoPE    predicts    attends to
    0       embed(x[p+1]), fc(g[p])             p       x[p+2]      keys of step 0 up to p
    1       embed(x[p+2]), output of step 0     p+1     x[p+3]      the same, and its own key of step 1
    2       embed(x[p+3]), output of step 1     p+2     x[p+4]      the same, and its own keys of steps 1 and 2

A window of the head leaves it the last keys of step 0 up to p, and the first ones.

This is what drafting does, from every position at once. Only step 0 runs over prompts, for its keys; everything else
runs over the S supervised rows. The embedding half of the input is the same at every step up to a shift by one row, so
it is projected once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.draft.description import TENSORS, HeadConfig, HeadWeights
from fledge.target.rope import rope_tables
from fledge.train import attention_flex
from fledge.train.attention import UnrollAttention
from fledge.train.batches import TrainBatch
from fledge.train.blocks import Sizes
from fledge.train.functions import AddShifted, Linear, RmsNorm, Rope, SwiGlu, TakeRows
from fledge.train.weights import TrainableWeights
from fledge.train.workspace import Workspace

_FIRST_POSITIONS = 4096  # initial length of the RoPE table; grows on demand


class UnrolledHead:
    """A head in training: its weights and the unroll."""

    def __init__(
        self,
        config: HeadConfig,
        weights: HeadWeights,
        embedding: Tensor,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`embedding` [V, H] is the target's, or the head's own; it is not trained."""
        self.config = config
        self.workspace = Workspace()
        self.weights = TrainableWeights(_split(weights), dtype, device)
        self._kernels = self.weights.kernels
        self.dtype, self.device = dtype, device
        self._embedding = embedding.to(
            device
        )  # rows are cast: a copy of all would be the largest tensor here
        self._flex = device.type == "cuda"
        self._sizes = Sizes(
            config.num_heads, config.num_kv_heads, config.head_dim, config.window, config.sinks
        )
        self._rope = self._rope_tables(_FIRST_POSITIONS)

    def unroll(self, batch: TrainBatch, steps: int) -> Iterator[Tensor]:
        """Every step's output after the final norm, [S, H]: the lm_head's input. Row r is base position rows[r].

        A batch of S rows has at most S steps: none of its answers is longer.
        """
        steps = min(steps, len(batch.rows))
        positions = batch.positions[batch.rows]
        reach = int(batch.positions.max()) + steps
        if reach > self._rope[0].shape[0]:
            self._rope = self._rope_tables(2 * reach)
        embedded = self._norm(
            F.embedding(batch.token_ids, self._embedding).to(self.dtype), "input_norm"
        )  # [T, H]
        from_embedding = self._linear(embedded, "qkv_embedding")  # [T, q + 2 * kv]
        hidden = self._linear(self._normed_features(batch.features), "fc")  # [T, H]

        normed, residual = self._attention_input(hidden)
        query, *keys_values = self._project(normed, from_embedding, 0, batch.positions)
        query, residual, from_embedding = (
            TakeRows.apply(x, batch.rows) for x in (query, residual, from_embedding)
        )
        mask = None
        if self._flex:
            mask = attention_flex.conversation_mask(batch.positions, batch.rows, self._sizes)
        own_keys: list[Tensor] = []
        own_values: list[Tensor] = []
        for step in range(steps):
            if step:
                normed, residual = self._attention_input(hidden)
                query, key, value = self._project(normed, from_embedding, step, positions + step)
                own_keys.append(key)
                own_values.append(value)
            others = (*keys_values, *own_keys, *own_values)
            if mask is None:
                mixed = UnrollAttention.apply(
                    self._kernels, batch.blocks, self._sizes, self.workspace, query, *others
                )
            else:
                mixed = attention_flex.unroll_attention(mask, self._sizes, query, *others)
            hidden = self._linear(mixed, "o", add=residual)
            inner = SwiGlu.apply(self._linear(self._norm(hidden, "post_norm"), "gate_up"), self._kernels)
            hidden = self._linear(inner, "down", add=hidden)
            output = self._norm(hidden, "norm")
            yield output
            hidden = output if self.config.norm_output else hidden

    def head_weights(self, like: HeadWeights, shard: Tensor | None = None) -> HeadWeights:
        """The trained weights, or those in another buffer sharded like the masters, as float32 head weights."""
        return _join(self.weights.tensors(shard), like)

    def _attention_input(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden half of the attention's input, and the residual: the hidden state after or before that norm."""
        normed = self._norm(hidden, "hidden_norm")
        return normed, normed if self.config.norm_before_residual else hidden

    def _project(
        self, normed: Tensor, from_embedding: Tensor, step: int, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of rows: hidden and embedding halves added, then RoPE applied."""
        c = self.config
        qkv = self._linear(normed, "qkv_hidden")
        qkv = AddShifted.apply(qkv, from_embedding, step)
        query_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        rotated, value = qkv.split([query_size + kv_size, kv_size], dim=1)
        cos, sin = (table[positions] for table in self._rope)
        rotated = Rope.apply(rotated, cos, sin, self._kernels)
        query, key = rotated.split([query_size, kv_size], dim=1)
        return query, key, value

    def _rope_tables(self, positions: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of that many positions; a head's config may allow millions, which no conversation needs."""
        c = self.config
        cos, sin = rope_tables(c.head_dim, c.rope_theta, c.rope_scaling, positions)
        return cos.to(self.device), sin.to(self.device)

    def _normed_features(self, features: Tensor) -> Tensor:
        if not self.config.fc_norm:
            return features
        parts = features.split(self.config.target_hidden_size, dim=1)
        return torch.cat(
            [self._norm(part.contiguous(), f"fc_norms{i}") for i, part in enumerate(parts)], dim=1
        )

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        normed: Tensor = RmsNorm.apply(x, weight.compute, weight, self.config.rms_norm_eps)
        return normed

    def _linear(self, x: Tensor, name: str, add: Tensor | None = None) -> Tensor:
        weight = self.weights[name]
        product: Tensor = Linear.apply(x, add, weight.compute, weight, self.workspace)
        return product


def _split(w: HeadWeights) -> dict[str, Tensor]:
    """The trained tensors by name, lm_head first. The attention's two input halves are separate matrices."""
    named = w.trainable()
    embedding, hidden = named.pop("qkv").chunk(2, dim=1)
    named |= {"qkv_embedding": embedding, "qkv_hidden": hidden}
    for name in _rows(named):
        named |= {f"{name}{i}": row for i, row in enumerate(named.pop(name))}
    return named


def _rows(names: Iterable[str]) -> list[str]:
    """Those of the tensors that are rows of vectors, each trained as a vector."""
    return [name for name in names if name in TENSORS and TENSORS[name].stacked]


def _join(named: dict[str, Tensor], like: HeadWeights) -> HeadWeights:
    qkv = torch.cat((named.pop("qkv_embedding"), named.pop("qkv_hidden")), dim=1)
    for name in _rows(like.trainable()):
        named[name] = torch.stack([named.pop(f"{name}{i}") for i in range(len(TENSORS[name].names))])
    return HeadWeights(**named, qkv=qkv, d2t=like.d2t, embedding=like.embedding)
