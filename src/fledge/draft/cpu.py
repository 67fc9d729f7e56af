"""The draft head on the CPU kernels: one C++ call per draft step or extend, including top-k.

A draft step mostly reads the head's matrices, so they are stored in 8 bits (`native/codes.h`). That occasionally
changes what is drafted, but never the answer: the target still verifies in bf16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from fledge.base.errors import EngineError
from fledge.base.options import DraftWeights
from fledge.draft.description import CANDIDATE_TENSORS, SWITCHES, HeadConfig, HeadWeights
from fledge.draft.race import Draws
from fledge.draft.runner import DraftOutput
from fledge.native import abi, ops, unavailable_reason
from fledge.native.build import library
from fledge.target.batch import ForwardBatch
from fledge.target.cpu import batch_arguments, shape_reason
from fledge.target.matrix import Matrix, Quantised
from fledge.target.packing import interleaved, packed
from fledge.target.rope import rope_tables

_FORMS: Mapping[DraftWeights, Quantised | None] = {"int8": "q8_0", "int4": "q4_0", "bfloat16": None}


def native_head_reason(config: HeadConfig) -> str:
    """Why the native runner can't run this head; empty if it can."""
    if config.target_hidden_size % 32:
        return f"target_hidden_size {config.target_hidden_size} is not a multiple of 32"
    if config.candidate_rank % 32:
        return f"candidate_rank {config.candidate_rank} is not a multiple of 32"
    if config.candidates > abi.MOST_CANDIDATES:
        return f"{config.candidates} candidates are above {abi.MOST_CANDIDATES}"
    return shape_reason(_shape(config)) or unavailable_reason()


def _shape(c: HeadConfig) -> abi.Shape:
    return abi.Shape(
        c.hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim, c.rms_norm_eps, 0
    )


class NativeHeadRunner:
    """`HeadRunner` on the CPU kernels; page size 32. `embedding` [V, H] is the target's, packed, or the head's own.

    draft_weights: the matrices in 8 or 4 bits, or in bf16.
    """

    page_size = abi.PAGE_SIZE

    def __init__(
        self,
        config: HeadConfig,
        weights: HeadWeights,
        embedding: Tensor | ops.Weight,
        *,
        draft_weights: DraftWeights = "int8",
    ) -> None:
        self.config = config
        self._library = library()
        matrices = [Matrix.of(m.detach()) for m in (weights.qkv, weights.o, weights.gate_up, weights.down)]
        ends = ("fc", *CANDIDATE_TENSORS) if config.candidates else ("fc", "lm_head")
        matrices += [Matrix.of(getattr(weights, name).detach()) for name in ends]
        matrices[2] = interleaved(matrices[2])
        form = _FORMS[draft_weights]
        self._matrices = [packed(m.quantised(form) if form else m) for m in matrices]
        self.draft_weights = draft_weights
        layer, pointers = self._matrices[:4], [m.pointer for m in self._matrices[4:]]
        end = dict(zip(ends, pointers, strict=True))
        # Rows of candidates are read here and there, so they lie one after the other, and in bf16.
        rows = weights.lm_head.detach().to(torch.bfloat16).contiguous() if config.candidates else None
        self._lm_head_rows = rows
        self._embedding = embedding if isinstance(embedding, ops.Weight) else packed(embedding)
        vectors = weights.vectors().items()
        self._vectors = {name: None if v is None else v.detach().float().contiguous() for name, v in vectors}
        self._target_ids = weights.d2t.long() + torch.arange(config.draft_vocab_size)
        self._rope = rope_tables(
            config.head_dim,
            config.rope_theta,
            config.rope_scaling,
            config.max_position_embeddings + abi.MOST_NODES,  # plus the window of the last round
        )
        addresses = {name: ops.address(v) for name, v in self._vectors.items()}
        input_norm, post_norm = addresses["input_norm"], addresses["post_norm"]
        cos, sin = (t.data_ptr() for t in self._rope)
        self._struct = abi.DraftHead(
            _shape(config),
            config.target_hidden_size,
            config.draft_vocab_size,
            sum(getattr(config, name) << bit for bit, name in enumerate(SWITCHES)),
            config.window,
            config.sinks,
            abi.Layer(input_norm, post_norm, *[None] * 5, *(m.pointer for m in layer), cos, sin, windowed=0),
            self._embedding.pointer,
            end["fc"],
            end.get("lm_head"),
            self._target_ids.data_ptr(),
            (ctypes.c_void_p * abi.MOST_HEAD_VECTORS)(*addresses.values()),
            config.candidates,
            end.get("candidate_down"),
            end.get("candidate_up"),
            ops.address(self._lm_head_rows),
        )

    @property
    def pointer(self) -> int:
        """The head's address for the kernels, valid as long as the runner lives."""
        return ctypes.addressof(self._struct)

    @property
    def weight_bytes(self) -> int:
        """Memory of the head's own matrices in bytes."""
        rows = 0 if self._lm_head_rows is None else self._lm_head_rows.nbytes
        return rows + sum(matrix.bytes for matrix in self._matrices)

    def allocate_kv(self, pages: int) -> Tensor:
        """[1, pages, kv_heads, 2, 32 * head_dim] bf16."""
        c = self.config
        return ops.pages_of_zeros(1, pages, c.num_kv_heads, 2, self.page_size * c.head_dim)

    def kv_bytes_per_token(self) -> int:
        """Bytes per token in the pool."""
        return self.config.num_kv_heads * 2 * self.config.head_dim * 2

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
        """Run the head over R rows; see `HeadRunner.forward`."""
        if (features is None) == (hidden is None):
            raise EngineError("a head forward takes either features (extend) or hidden states (draft step)")
        if k > min(abi.MOST_NODES, self.config.draft_vocab_size):
            limit = min(abi.MOST_NODES, self.config.draft_vocab_size)
            raise EngineError(f"{k} proposals a node are too many: use at most {limit}")
        rows = batch.token_ids.shape[0]
        arguments = batch_arguments(batch)
        logit_rows = None if batch.logit_rows is None else batch.logit_rows.int().contiguous()
        count = rows if logit_rows is None else logit_rows.shape[0]
        held = [None if t is None else t.to(torch.bfloat16).contiguous() for t in (features, hidden)]
        out = DraftOutput(
            token_ids=torch.empty(count, k, dtype=torch.int64),
            log_probs=torch.empty(count, k, dtype=torch.float32),
            hidden=torch.empty(count, self.config.hidden_size, dtype=torch.bfloat16),
        )
        drawn: tuple[Tensor | None, Tensor | None] = (None, None)
        if draws is not None:
            filters = torch.stack([column.to(torch.float32) for column in draws[:4]], 1)  # [M, 4]
            drawn = (filters, draws.coin.contiguous())
        pointers = (ops.address(t) for t in (*held, *out, *drawn))
        outputs = abi.HeadOutputs(ops.address(logit_rows), count, k, *pointers)
        self._library.fledge_head_forward(
            ctypes.byref(self._struct),
            ctypes.byref(arguments.struct),
            ctypes.c_void_p(kv.data_ptr()),
            ctypes.c_int64(kv.shape[1]),
            ctypes.byref(outputs),
        )
        return out
