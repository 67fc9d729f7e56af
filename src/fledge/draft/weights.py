"""A head's weights: one canonical set of tensors, shared by training, serving and all checkpoint forms.

feature g[p] --fc--> h --+--> hidden_norm --.
                         |                   concat -> attention -> + -> post_norm -> MLP -> + --> next h
embed(x[p+1]) --> input_norm ---------------'              ^                        ^        |
                         |_________________________________|________________________|   norm, lm_head -> x[p+2]
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from fledge.base.errors import HeadError
from fledge.draft.config import HeadConfig, HeadMetadata


@dataclass
class HeadWeights:
    """All tensors of a head. H hidden size, Ht the target's, Vd draft vocabulary, V the target's."""

    fc: Tensor  # [H, 3 * Ht]
    hidden_norm: Tensor  # [H], on the hidden state
    input_norm: Tensor  # [H], on the embedding
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, 2 * H], columns: embedding, then hidden state
    o: Tensor  # [H, heads * head_dim]
    post_norm: Tensor  # [H]
    gate_up: Tensor  # [2 * I, H], gate rows first
    down: Tensor  # [H, I]
    norm: Tensor  # [H]
    lm_head: Tensor  # [Vd, H]
    d2t: Tensor  # [Vd] int64, offsets: target id = draft id + d2t[draft id]
    embedding: Tensor | None = None  # [V, H]; None: the target's
    fc_norms: Tensor | None = None  # [3, Ht], only with config.fc_norm

    def trainable(self) -> dict[str, Tensor]:
        """The trained tensors by name: all but the vocabulary map and the embedding."""
        frozen = ("d2t", "embedding")
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in frozen}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> HeadWeights:
        """The same weights in another dtype; the vocabulary map stays int64."""
        changed = {name: tensor.to(device, dtype) for name, tensor in self.trainable().items()}
        embedding = None if self.embedding is None else self.embedding.to(device, dtype)
        return replace(self, **changed, d2t=self.d2t.to(device), embedding=embedding)


class HeadParts(Protocol):
    """The parts of a head, as stored in its files."""

    config: HeadConfig
    weights: HeadWeights
    metadata: HeadMetadata


def weight_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every trained weight, by its name in HeadWeights."""
    size, target, heads = config.hidden_size, config.target_hidden_size, config.num_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (size, 3 * target),
        "qkv": (config.qkv_size, 2 * size),
        "o": (size, heads),
        "gate_up": (2 * config.intermediate_size, size),
        "down": (size, config.intermediate_size),
        "lm_head": (config.draft_vocab_size, size),
    } | dict.fromkeys(("hidden_norm", "input_norm", "post_norm", "norm"), (size,))
    return shapes | ({"fc_norms": (3, target)} if config.fc_norm else {})


def check_weights(config: HeadConfig, w: HeadWeights) -> None:
    """Raise a HeadError unless these weights are a head of this config."""
    expected = weight_shapes(config) | {"d2t": (config.draft_vocab_size,)}
    if w.embedding is not None:
        expected["embedding"] = (config.vocab_size, config.hidden_size)
    for name, shape in expected.items():
        tensor: Tensor | None = getattr(w, name)
        if tensor is None or tuple(tensor.shape) != shape:
            actual = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
            raise HeadError(f"the head's {name} is {actual}, but its config says {shape}: get the head again")
    ids = w.d2t + torch.arange(config.draft_vocab_size, device=w.d2t.device)
    if bool((ids < 0).any()) or bool((ids >= config.vocab_size).any()):
        raise HeadError(
            f"the head's d2t points outside a vocabulary of {config.vocab_size}; it must hold offsets, "
            "not ids: export the head again"
        )
