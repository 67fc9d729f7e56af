"""The target's decoder on CPU kernels: one C++ call per forward, weights read once, front to back, the lm_head in part.

Results are row-invariant: a row's logits and features don't depend on how many rows go with it, nor on whether it is
a tree node or a plain decode step. So greedy speculation equals plain decode bit for bit, in bf16 too.
"""

from __future__ import annotations

import ctypes
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fledge.native import abi, ops, unavailable_reason
from fledge.native.build import library
from fledge.target.batch import ForwardBatch, ForwardOutput, LogitsMode
from fledge.target.config import DecoderConfig
from fledge.target.packing import interleaved, packed, screen_of
from fledge.target.rope import rope_table, window_rope_table
from fledge.target.weights import DecoderWeights, LayerWeights

# The fields of a config that the kernels compute with, that weights have taken up when they are packed, or that change
# no forward. Any other, as a new family's, keeps its targets in torch until the kernels know it.
_COMPUTED = {
    "architecture", "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads",
    "head_dim", "vocab_size", "rms_norm_eps", "rope_theta", "rope_scaling", "max_position_embeddings",
    "own_positions", "tie_word_embeddings", "qkv_bias", "qk_norm", "rope_free_layers", "window",
    "windowed_layers", "window_rope_theta", "query_scale", "embedding_scale", "residual_scale",
    "logit_scale", "activation", "out_norms", "chosen_layers",
}  # fmt: skip


def native_available(config: DecoderConfig, dtype: torch.dtype, device: torch.device | str) -> str:
    """Why the native decoder can't serve this target here; empty when it can."""
    if torch.device(device).type != "cpu":
        return f"the kernels are for the CPU, not {device}"
    if dtype != torch.bfloat16:
        return f"the kernels compute in bfloat16, not {str(dtype).removeprefix('torch.')}"
    if config.experts:
        return f"the kernels have no experts, as {config.architecture} has"
    unknown = [
        f.name for f in fields(config) if f.name not in _COMPUTED and getattr(config, f.name) != f.default
    ]
    if unknown:
        return f"the kernels don't compute {unknown[0]}, as {config.architecture} has it"
    return shape_reason(_shape(config)) or unavailable_reason()


def shape_reason(shape: abi.Shape) -> str:
    """Why a layer of these sizes doesn't fit the kernels; empty when it does."""
    sizes = {"hidden_size": shape.hidden, "intermediate_size": shape.intermediate, "head_dim": shape.head_dim}
    for name, value in sizes.items():
        if value % 32:
            return f"{name} {value} is not a multiple of 32"
    if shape.head_dim > 256:
        return f"head_dim {shape.head_dim} is above 256"
    if (group := shape.heads // shape.kv_heads) > ops.MAX_GROUP:
        return f"{group} query heads share a KV head, the kernels take {ops.MAX_GROUP}"
    return ""


def _shape(c: DecoderConfig) -> abi.Shape:
    gelu = int(c.activation == "gelu")
    return abi.Shape(
        c.hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim, c.rms_norm_eps, gelu
    )


class PackedLayer:
    """A layer's packed matrices and its vectors, with the C structure that points at them.

    `angles`: cosine and sine of its RoPE, [positions, head_dim / 2] float32; None: it has none.
    """

    def __init__(
        self, weights: LayerWeights[Any], angles: tuple[Tensor, Tensor] | None, windowed: bool
    ) -> None:
        gate_up, down = weights.dense_mlp
        self.matrices = [packed(m) for m in (weights.qkv, weights.o, interleaved(gate_up), down)]
        vectors = [weights.input_norm, weights.post_norm, weights.qkv_bias, weights.q_norm, weights.k_norm]
        vectors += [weights.attention_out_norm, weights.mlp_out_norm]
        self.vectors = [None if v is None else v.detach().float().contiguous() for v in vectors]
        self.pointers = abi.Layer(
            *(ops.address(v) for v in self.vectors),
            *(m.pointer for m in self.matrices),
            *(t.data_ptr() for t in angles or ()),
            windowed=int(windowed),
        )

    @property
    def bytes(self) -> int:
        """Bytes of weights one forward reads."""
        return sum(m.bytes for m in self.matrices) + sum(v.nbytes for v in self.vectors if v is not None)


class NativeDecoder:
    """`Decoder` on the CPU kernels; bf16, page size 32."""

    backend = "native"
    dtype = torch.bfloat16
    page_size = abi.PAGE_SIZE

    def __init__(self, config: DecoderConfig, weights: DecoderWeights[Any]) -> None:
        """`weights`: tensors, or matrices as a file holds them, which keep their formats."""
        self.config = config
        self.device = torch.device("cpu")
        self._library = library()
        positions = config.max_position_embeddings + abi.MOST_NODES  # with the window of the last round
        self._angles = rope_table(config, positions)
        self._window_angles = window_rope_table(config, positions) or self._angles
        self._norm = weights.norm.detach().float().contiguous()
        self._lm_head = packed(weights.lm_head)
        # Both ends of a model often have one matrix: the kernels take a token's row out of its panels.
        tied = weights.embedding is weights.lm_head
        self.embedding = self._lm_head if tied else packed(weights.embedding)
        self._screen = None if self._lm_head.coded else screen_of(self._lm_head)
        # After the ends, whose mapped files leave memory with the first layer.
        self._layers = [self._pack(index, layer) for index, layer in enumerate(weights.layers)]
        self._pointers = (abi.Layer * len(self._layers))(*(layer.pointers for layer in self._layers))
        self._struct = abi.Decoder(
            _shape(config),
            config.num_layers,
            config.vocab_size,
            (ctypes.c_int * 3)(*config.feature_layers),
            self._pointers,
            self.embedding.pointer,
            float(torch.tensor(config.embedding_scale, dtype=self.dtype)),
            config.window,
            self._norm.data_ptr(),
            self._lm_head.pointer,
            None if self._screen is None else self._screen.pointer,
        )

    def _pack(self, index: int, layer: LayerWeights[Any]) -> PackedLayer:
        windowed = index in self.config.windowed_layers
        angles = self._window_angles if windowed else self._angles
        return PackedLayer(layer, None if index in self.config.rope_free_layers else angles, windowed)

    @property
    def weight_bytes_per_token(self) -> int:
        """Bytes of weights a greedy decode step reads: all layers, and the lm_head or what screening reads of it."""
        last = self._lm_head if self._screen is None else self._screen
        return sum(layer.bytes for layer in self._layers) + last.bytes

    @property
    def pointer(self) -> int:
        """Where the kernels find the target, as long as the decoder lives."""
        return ctypes.addressof(self._struct)

    def allocate_kv(self, pages: int) -> Tensor:
        """[layers, pages, kv_heads, 2, 32 * head_dim] bf16: keys, then values, as products take them (`kv_pages.h`)."""
        c = self.config
        return ops.pages_of_zeros(c.num_layers, pages, c.num_kv_heads, 2, self.page_size * c.head_dim)

    def kv_bytes_per_token(self) -> int:
        """Bytes one token takes in the pool."""
        return self.config.kv_size * torch.bfloat16.itemsize

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
        return self._forward(batch, kv, logits, features, hidden)

    def forward_drawn(
        self,
        batch: ForwardBatch,
        kv: Tensor,
        filters: Tensor | None,
        coins: Tensor | None,
        allowed: Tensor | None,
        *,
        features: bool,
        hidden: bool = False,
    ) -> ForwardOutput:
        """`forward` and what `sample` would draw of its logits; it is the output's `argmax`.

        Logits are only made if a row has a filter. filters [M, 4] float32: temperature, 0 for the most likely token,
        top-k, top-p, min-p; coins [M] int64; None: all are greedy. `allowed` [M, ceil(V / 32)] int32, bits of the
        tokens that a row may choose; None: any.
        """
        return self._forward(batch, kv, "argmax", features, hidden, filters, coins, allowed)

    def _forward(
        self,
        batch: ForwardBatch,
        kv: Tensor,
        logits: LogitsMode,
        features: bool,
        hidden: bool,
        filters: Tensor | None = None,
        coins: Tensor | None = None,
        allowed: Tensor | None = None,
    ) -> ForwardOutput:
        rows, width = batch.token_ids.shape[0], self.config.hidden_size
        arguments = batch_arguments(batch)
        wanted = None if batch.logit_rows is None else batch.logit_rows.int().contiguous()
        count = rows if wanted is None else wanted.shape[0]
        vocabulary = self.config.vocab_size
        out = ForwardOutput(
            logits=torch.empty(count, vocabulary, dtype=torch.float32) if logits == "logits" else None,
            argmax=torch.empty(count, dtype=torch.int64) if logits == "argmax" else None,
            features=torch.empty(rows, 3 * width, dtype=self.dtype) if features else None,
            hidden=torch.empty(rows, width, dtype=self.dtype) if hidden else None,
        )
        held = [None if t is None else t.contiguous() for t in (filters, coins, allowed)]
        pointers = (ops.address(t) for t in (*out, *held))
        outputs = abi.DecoderOutputs(ops.address(wanted), count, *pointers)
        self._library.fledge_decoder_forward(
            ctypes.byref(self._struct),
            ctypes.byref(arguments.struct),
            ctypes.c_void_p(kv.data_ptr()),
            ctypes.c_int64(kv.shape[1]),
            ctypes.byref(outputs),
        )
        return out

    def move_kv(self, kv: Tensor, source: Tensor, destination: Tensor) -> None:
        """Copy entries between slots ([M] int64 each), as if all sources were read before any write."""
        source, destination = source.long().contiguous(), destination.long().contiguous()
        self._library.fledge_move_kv(
            ctypes.c_void_p(kv.data_ptr()),
            kv.shape[0],
            ctypes.c_int64(kv.shape[1]),
            kv.shape[2],
            self.config.head_dim,
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_void_p(destination.data_ptr()),
            ctypes.c_int64(source.shape[0]),
        )

    def sample(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        coins: Tensor,
    ) -> Tensor:
        """One token per row of `logits` [M, V]; see `ops.sample`."""
        return ops.sample(logits, temperature, top_k, top_p, min_p, coins)


def batch_arguments(batch: ForwardBatch) -> ops.BatchArguments:
    """A `ForwardBatch` as the kernels read it."""
    tensors = (
        batch.token_ids,
        batch.positions,
        batch.row_start,
        batch.prefix_length,
        batch.window_offset,
        batch.page_table,
    )
    return ops.BatchArguments(
        tensors,
        batch.window_mask,
        batch.token_ids.shape[0],
        batch.prefix_length.shape[0],
        batch.page_table.shape[1],
    )
