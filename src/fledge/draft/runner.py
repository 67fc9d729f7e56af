"""Runs a head over a paged KV pool with the target's page size and page tables.

The head's KV index p belongs to position p, where the head has read x[p+1] and the feature of x[p].
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.attention import Window, paged_attention
from fledge.base.errors import EngineError
from fledge.draft.description import HeadConfig, HeadWeights
from fledge.draft.race import Draws, foreseen
from fledge.native.abi import MOST_NODES
from fledge.target.batch import ForwardBatch
from fledge.target.qkv import rotate_and_store
from fledge.target.rope import rope_tables


class DraftOutput(NamedTuple):
    """The outputs of a head forward for the M requested rows."""

    token_ids: Tensor  # [M, k] int64, target ids, most probable first
    log_probs: Tensor  # [M, k] float32, within the draft vocabulary; for sampled rows, given their coins
    hidden: Tensor  # [M, H], input of the next draft step


class HeadRunner(Protocol):
    """A head's forward pass."""

    config: HeadConfig
    page_size: int

    def allocate_kv(self, pages: int) -> Tensor:
        """A zeroed KV pool for `pages` pages; the layout is private to the runner."""
        ...

    def kv_bytes_per_token(self) -> int:
        """Bytes per token in the pool."""
        ...

    def forward(
        self,
        batch: ForwardBatch,
        kv: Tensor,
        *,
        features: Tensor | None,
        hidden: Tensor | None,
        k: int,
        draws: Draws | None = None,
    ) -> DraftOutput:
        """Run the head over R rows.

        batch.token_ids are the NEXT tokens x[p+1], batch.positions the p's. Pass exactly one of
        features [R, 3 * Ht] (extend: fc applies) and hidden [R, H] (draft step: the head's own earlier output).
        draws: how the M rows' tokens will be sampled; None: greedily.
        """
        ...


class TorchHeadRunner:
    """The head in plain torch: any device and dtype, and the reference for the kernels."""

    def __init__(
        self, config: HeadConfig, weights: HeadWeights, embedding: Tensor, *, page_size: int
    ) -> None:
        """`embedding` [V, H] is the target's or the head's own; it sets the dtype and device of the computation."""
        self.config = config
        self.page_size = page_size
        self.dtype, self.device = embedding.dtype, embedding.device
        self._weights = weights.to(self.dtype, self.device)
        self._embedding = embedding
        vocabulary = torch.arange(config.draft_vocab_size, device=self.device)
        self._target_ids = self._weights.d2t + vocabulary  # [Vd]
        cos, sin = rope_tables(
            config.head_dim,
            config.rope_theta,
            config.rope_scaling,
            config.max_position_embeddings + MOST_NODES,  # plus the window of the last round
        )
        self._cos, self._sin = cos.to(self.device), sin.to(self.device)

    def allocate_kv(self, pages: int) -> Tensor:
        """[2, pages * page_size, kv_heads, head_dim]."""
        c = self.config
        shape = (2, pages * self.page_size, c.num_kv_heads, c.head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def kv_bytes_per_token(self) -> int:
        """Keys and values of the one layer."""
        return 2 * self.config.num_kv_heads * self.config.head_dim * self.dtype.itemsize

    @torch.no_grad()
    def forward(
        self,
        batch: ForwardBatch,
        kv: Tensor,
        *,
        features: Tensor | None,
        hidden: Tensor | None,
        k: int,
        draws: Draws | None = None,
    ) -> DraftOutput:
        """See `HeadRunner.forward`."""
        if k > self.config.draft_vocab_size:
            raise EngineError(
                f"{k} proposals a node are too many: use at most {self.config.draft_vocab_size}"
            )
        out, normed = self._layer(batch, kv, self._entry(features, hidden))
        log_probs = self._scores(normed).log_softmax(dim=-1)  # [M, Vd]
        if draws is not None:
            log_probs = foreseen(log_probs, self._target_ids, draws)
        best = log_probs.topk(k, dim=-1)
        return DraftOutput(
            self._target_ids[best.indices], best.values, normed if self.config.norm_output else out
        )

    def _scores(self, normed: Tensor) -> Tensor:
        """The lm_head's, [M, Vd] float32: with candidates exact for these, and estimates for other tokens."""
        w, count = self._weights, self.config.candidates
        if not count or w.candidate_up is None or w.candidate_down is None:
            return F.linear(normed, w.lm_head).float()
        scores = F.linear(F.linear(normed, w.candidate_down), w.candidate_up).float()
        best = scores.topk(count, dim=-1).indices
        exact = torch.bmm(w.lm_head[best], normed[:, :, None])[:, :, 0]  # [M, count]
        return scores.scatter(1, best, exact.float())

    def _entry(self, features: Tensor | None, hidden: Tensor | None) -> Tensor:
        """The layer's input hidden state, [R, H]."""
        if features is None and hidden is not None:
            return hidden.to(self.dtype)
        if features is None or hidden is not None:
            raise EngineError("a head forward takes either features (extend) or hidden states (draft step)")
        features, norms = features.to(self.dtype), self._weights.fc_norms
        if norms is not None:
            size, eps = self.config.target_hidden_size, self.config.rms_norm_eps
            parts = features.split(size, dim=-1)
            normed = [F.rms_norm(part, (size,), norms[i], eps) for i, part in enumerate(parts)]
            features = torch.cat(normed, dim=-1)
        return F.linear(features, self._weights.fc)

    def _layer(self, batch: ForwardBatch, kv: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The layer over h [R, H]: its output for the M requested rows, before and after the final norm."""
        c, w, eps = self.config, self._weights, self.config.rms_norm_eps
        shape, heads, kv_heads = (c.hidden_size,), c.num_heads, c.num_kv_heads
        attention = paged_attention(batch, self.page_size, Window(c.window, c.sinks, of_prefix=True))
        positions = batch.positions.long()
        embedded = F.embedding(batch.token_ids.long(), self._embedding)  # [R, H]
        normed = F.rms_norm(h, shape, w.hidden_norm, eps)
        both = torch.cat((F.rms_norm(embedded, shape, w.input_norm, eps), normed), dim=-1)
        h = normed if c.norm_before_residual else h
        qkv = F.linear(both, w.qkv).view(-1, heads + 2 * kv_heads, c.head_dim)
        rope = self._cos[positions], self._sin[positions]
        query = rotate_and_store(qkv, kv[0], kv[1], attention.write_slots, rope)
        mixed = attention.attend(query, kv[0], kv[1]).reshape(h.shape[0], -1)
        if batch.logit_rows is not None:  # only these rows are needed from here
            h, mixed = h.index_select(0, batch.logit_rows), mixed.index_select(0, batch.logit_rows)
        h = h + F.linear(mixed, w.o)
        gate, up = F.linear(F.rms_norm(h, shape, w.post_norm, eps), w.gate_up).chunk(2, dim=-1)
        out = h + F.linear(F.silu(gate) * up, w.down)
        return out, F.rms_norm(out, shape, w.norm, eps)
