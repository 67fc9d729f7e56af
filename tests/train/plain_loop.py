"""Training-time test written down plainly: transformers' parts, nn.Linear, autograd, all positions, full logits.

What fledge's trainer is checked against (the same loss and gradients) and measured against (benchmarks/training_speed).
The unroll is as in EAGLE-3 (arXiv 2503.01840): step j attends to the keys of step 0 up to its position and its own
later ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from fledge.features import FeatureSample
from fledge.heads import Head
from fledge.target import Target


class PlainHead(nn.Module):
    """An EAGLE-3 head as a module with float32 weights; `embedding` and the teacher are not trained."""

    embedding: Tensor  # [V, H]
    teacher: Tensor  # [Vd, Ht]
    draft_ids: Tensor  # [V]

    def __init__(self, head: Head, target: Target) -> None:
        super().__init__()
        c, w = head.config, head.weights
        self.config = c
        config = LlamaConfig(
            hidden_size=c.hidden_size,
            intermediate_size=c.intermediate_size,
            num_attention_heads=c.num_heads,
            num_key_value_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            rms_norm_eps=c.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
            max_position_embeddings=c.max_position_embeddings,
        )
        sizes = [c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim]
        self.fc, self.o, self.lm_head = _linear(w.fc), _linear(w.o), _linear(w.lm_head)
        self.q, self.k, self.v = (_linear(part) for part in w.qkv.split(sizes))
        self.mlp = LlamaMLP(config)
        gate, up = w.gate_up.chunk(2)
        self.mlp.gate_proj, self.mlp.up_proj, self.mlp.down_proj = _linear(gate), _linear(up), _linear(w.down)
        self.hidden_norm, self.input_norm = (
            _norm(w.hidden_norm, c.rms_norm_eps),
            _norm(w.input_norm, c.rms_norm_eps),
        )
        self.post_norm, self.norm = _norm(w.post_norm, c.rms_norm_eps), _norm(w.norm, c.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(config)
        vocabulary = head.vocabulary
        self.register_buffer("embedding", target.weights.embedding.float())
        self.register_buffer("teacher", target.weights.lm_head[vocabulary.token_ids].float())
        self.register_buffer("draft_ids", vocabulary.draft_ids)

    def forward(self, samples: Sequence[FeatureSample], weights: Sequence[float]) -> Tensor:
        """The loss over conversations: soft cross-entropy of each step, a mean over its supervised positions."""
        steps = len(weights)
        ids = pad_sequence([s.token_ids.long() for s in samples], batch_first=True)  # [B, L]
        mask = pad_sequence([s.loss_mask.bool() for s in samples], batch_first=True)
        best = pad_sequence([s.argmax.long() for s in samples], batch_first=True, padding_value=-1)
        features = pad_sequence([s.features.float() for s in samples], batch_first=True)  # [B, L, 3 * Ht]
        last = pad_sequence([s.hidden.float() for s in samples], batch_first=True)  # [B, L, Ht]
        length = ids.shape[1]
        teacher = F.linear(last, self.teacher).float().softmax(-1)  # [B, L, Vd], of x[p+1] at p
        inside = (best >= 0) & (self.draft_ids[best.clamp(min=0)] >= 0)
        hidden = self.fc(features)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        valid = torch.ones_like(mask)
        total = hidden.new_zeros((), dtype=torch.float32)
        for step in range(steps):
            embedded = F.embedding(_left(ids, 1 + step), self.embedding)
            hidden = self._layer(hidden, embedded, keys, values, step, length)
            logits = self.lm_head(self.norm(hidden))
            valid = valid & _left(mask, 2 + step)
            counted = valid & _left(inside, 1 + step)
            loss = -(_left(teacher, 1 + step) * logits.float().log_softmax(-1)).sum(-1)
            total = total + weights[step] * loss[counted].mean() if counted.any() else total
        return total

    def _layer(
        self,
        hidden: Tensor,
        embedded: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        step: int,
        length: int,
    ) -> Tensor:
        c = self.config
        normed = self.hidden_norm(hidden)
        x = torch.cat((self.input_norm(embedded), normed), dim=-1)
        hidden = normed if c.norm_before_residual else hidden
        query, key, value = (
            layer(x).unflatten(-1, (-1, c.head_dim)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )  # [B, heads, L, D]
        positions = torch.arange(length, device=x.device)[None] + step
        query, key = apply_rotary_pos_emb(query, key, *self.rotary(x, positions))
        group = c.num_heads // c.num_kv_heads
        keys.append(key.repeat_interleave(group, dim=1))
        values.append(value.repeat_interleave(group, dim=1))
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        scores = (query @ keys[0].transpose(-1, -2)).masked_fill(~causal, float("-inf"))  # [B, heads, L, L]
        own = [(query * k).sum(-1, keepdim=True) for k in keys[1:]]
        shares = (torch.cat((scores, *own), dim=-1).float() * c.head_dim**-0.5).softmax(-1).to(query.dtype)
        mixed = shares[..., :length] @ values[0]
        for i, v in enumerate(values[1:]):
            mixed = mixed + shares[..., length + i, None] * v
        hidden = hidden + self.o(mixed.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.post_norm(hidden))


def _left(x: Tensor, by: int) -> Tensor:
    """x[:, p + by] at p, zeros at the end."""
    return torch.cat((x[:, by:], torch.zeros_like(x[:, :by])), dim=1)


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight.detach().float().clone())
    return layer


def _norm(weight: Tensor, eps: float) -> LlamaRMSNorm:
    layer = LlamaRMSNorm(len(weight), eps)
    layer.weight = nn.Parameter(weight.detach().float().clone())
    return layer
