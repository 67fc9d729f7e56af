"""The decoder in plain torch: runs on any device and in float32, and defines what the fast ones compute."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.attention import Attention, Window, paged_attention
from fledge.native.abi import MOST_NODES
from fledge.native.ops import pages_of_zeros
from fledge.target.batch import ForwardBatch, ForwardOutput, LogitsMode
from fledge.target.config import DecoderConfig
from fledge.target.experts import mix_experts
from fledge.target.qkv import rms_norm, rotate_and_store
from fledge.target.rope import rope_table, window_rope_table
from fledge.target.weights import DecoderWeights, LayerWeights

# Rows per lm_head call when only the argmax is wanted: [256, V] float32 at a time, however long the prompt.
_ARGMAX_ROWS = 256


class TorchDecoder:
    """A decoder of the Llama family, dense or with experts.

    It works over a paged KV pool of layout [layers, 2, pages * page_size, kv_heads, head_dim].
    """

    backend = "torch"

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights[Tensor], *, page_size: int = 16
    ) -> None:
        self.config = config
        self.page_size = page_size
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self._weights = replace(weights, layers=list(weights.layers))
        positions = config.max_position_embeddings + MOST_NODES  # with the window of the last round
        self._angles = self._on_device(rope_table(config, positions))
        own = window_rope_table(config, positions)
        self._window_angles = self._angles if own is None else self._on_device(own)

    def allocate_kv(self, pages: int) -> Tensor:
        """A zeroed pool, [layers, 2, pages * page_size, kv_heads, head_dim]."""
        c = self.config
        shape = (c.num_layers, 2, pages * self.page_size, c.num_kv_heads, c.head_dim)
        if self.device.type == "cpu":
            return pages_of_zeros(*shape, dtype=self.dtype)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return self.config.kv_size * self.dtype.itemsize

    @torch.no_grad()
    def forward(
        self,
        batch: ForwardBatch,
        kv: Tensor,
        *,
        logits: LogitsMode,
        features: bool = False,
        hidden: bool = False,
    ) -> ForwardOutput:
        """Run all layers over the rows, writing their keys and values into `kv`."""
        c = self.config
        positions = batch.positions.long()

        def prepare(window: Window, angles: tuple[Tensor, Tensor]) -> tuple[Attention, tuple[Tensor, Tensor]]:
            cos, sin = angles
            return paged_attention(batch, self.page_size, window), (cos[positions], sin[positions])

        whole = prepare(Window(), self._angles)
        windowed = prepare(Window(c.window), self._window_angles) if c.windowed_layers else whole
        x = F.embedding(batch.token_ids.long(), self._weights.embedding)  # [R, H]
        if c.embedding_scale != 1.0:
            x = x * torch.tensor(c.embedding_scale, dtype=self.dtype)
        captured: dict[int, Tensor] = {}
        last = self.config.num_layers - 1
        narrows = not hidden and not (features and last in self.config.feature_layers)
        wanted = batch.logit_rows if logits != "none" else batch.positions[:0]  # [M], None: all
        for index, layer in enumerate(self._weights.layers):
            kept = wanted if narrows and index == last else None
            attention, turns = windowed if index in c.windowed_layers else whole
            rope = None if index in c.rope_free_layers else turns
            x = self._layer(layer, x, rope, kv[index], attention, kept)
            if features and index in self.config.feature_layers:
                captured[index] = x
        eps = self.config.rms_norm_eps
        normed = rms_norm(x, self._weights.norm, eps)
        rows = normed if wanted is None or narrows else normed.index_select(0, wanted)  # [M, H]
        return ForwardOutput(
            logits=F.linear(rows, self._weights.lm_head).float() if logits == "logits" else None,
            argmax=self._argmax(rows) if logits == "argmax" else None,
            features=torch.cat([captured[i] for i in self.config.feature_layers], dim=-1)
            if features
            else None,
            hidden=normed if hidden else None,
        )

    def _on_device(self, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        cos, sin = angles  # [positions, head_dim // 2] float32 each
        return cos.to(self.device), sin.to(self.device)

    def move_kv(self, kv: Tensor, source: Tensor, destination: Tensor) -> None:
        """Copy entries between slots; reading into a copy first makes overlapping moves safe."""
        kv[:, :, destination.long()] = kv[:, :, source.long()]

    def _layer(
        self,
        w: LayerWeights[Tensor],
        x: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        kv: Tensor,
        attention: Attention,
        kept: Tensor | None,
    ) -> Tensor:
        """One layer over rows x [R, H]; kv [2, slots, kv_heads, head_dim].

        `kept` [M]: the rows that still matter behind its attention, and are returned; None: all.
        """
        c, eps = self.config, self.config.rms_norm_eps
        qkv = F.linear(rms_norm(x, w.input_norm, eps), w.qkv, w.qkv_bias)
        heads = qkv.view(-1, c.num_heads + 2 * c.num_kv_heads, c.head_dim)  # [R, heads + 2 * kv_heads, D]
        norms = None if w.q_norm is None or w.k_norm is None else (w.q_norm, w.k_norm)
        query = rotate_and_store(heads, kv[0], kv[1], attention.write_slots, rope, norms, eps)
        mixed = attention.attend(query, kv[0], kv[1], w.sinks)  # [R, heads, D]
        mixed = mixed.reshape(x.shape[0], -1)
        if kept is not None:
            x, mixed = x.index_select(0, kept), mixed.index_select(0, kept)
        x = x + rms_norm(F.linear(mixed, w.o, w.o_bias), w.attention_out_norm, eps)
        normed = rms_norm(x, w.post_norm, eps)
        if w.gate_up is not None and w.down is not None:
            gate, up = F.linear(normed, w.gate_up).chunk(2, dim=-1)
            gate = F.gelu(gate, approximate="tanh") if c.activation == "gelu" else F.silu(gate)
            x = x + rms_norm(F.linear(gate * up, w.down), w.mlp_out_norm, eps)
        if w.experts is not None and c.experts is not None:
            x = x + mix_experts(normed, w.experts, c.experts)
        return x

    def _argmax(self, hidden: Tensor) -> Tensor:
        """[M, H] -> [M] int64. Tensor.max returns the first of equals, as argmax does, but faster in bf16."""
        parts = [
            F.linear(rows, self._weights.lm_head).max(dim=-1).indices for rows in hidden.split(_ARGMAX_ROWS)
        ]
        return torch.cat(parts) if parts else hidden.new_empty(0, dtype=torch.int64)
