"""Weights, FLOPs and KV bytes of a target and of its head, from `config.json` alone.

Any Hugging Face decoder with the usual keys is understood, mixtures of experts too, whether fledge's own engine can run
it or not: the head may be served by SGLang or vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fledge.errors import TargetError
from fledge.storage import exists, join, read_json


@dataclass(frozen=True)
class ModelShape:
    """What decides the cost of a forward. Counts are weights, not bytes."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    attention: int  # weights of one layer's projections
    mlp: int  # weights of one layer's dense MLP, or of one expert
    experts: int = 1  # per layer
    experts_used: int = 1  # per token
    shared_mlp: int = 0  # weights of a layer that every token passes besides the experts

    @property
    def weights(self) -> int:
        """All weights a decode can touch: layers and lm_head, without the embedding, of which one row is read."""
        per_layer = self.attention + self.experts * self.mlp + self.shared_mlp
        return self.layers * per_layer + self.hidden * self.vocab

    def weights_read(self, rows: int) -> float:
        """Weights a forward over `rows` tokens reads: of the experts those that some token chose, on average."""
        missed = (1 - self.experts_used / self.experts) ** rows if self.experts > 1 else 0.0
        per_layer = self.attention + self.experts * (1 - missed) * self.mlp + self.shared_mlp
        return self.layers * per_layer + self.hidden * self.vocab

    @property
    def weights_per_token(self) -> int:
        """Weights that one token is multiplied with."""
        per_layer = self.attention + self.experts_used * self.mlp + self.shared_mlp
        return self.layers * per_layer + self.hidden * self.vocab

    @property
    def kv_values(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def attention_flops(self) -> int:
        """FLOPs of one row's attention for each token it sees: scores and weighted sum, in all layers."""
        return 4 * self.layers * self.heads * self.head_dim


@dataclass(frozen=True)
class HeadShape:
    """The EAGLE-3 head for a target: one layer whose attention reads embedding and feature side by side."""

    weights: int  # layer and lm_head over the draft vocabulary; what a draft step reads
    fc: int  # the projection of the three features, read by draft-extend only
    hidden: int

    @classmethod
    def of(cls, target: ModelShape, draft_vocab: int = 32_000) -> HeadShape:
        """As fledge trains it: the target's widths, `draft_vocab` tokens."""
        wide = (target.heads + 2 * target.kv_heads) * target.head_dim
        attention = wide * 2 * target.hidden + target.heads * target.head_dim * target.hidden
        dense = target.mlp if target.experts == 1 else max(target.mlp, target.shared_mlp)
        vocabulary = min(draft_vocab, target.vocab) * target.hidden
        return cls(attention + dense + vocabulary, 3 * target.hidden * target.hidden, target.hidden)


def read_shape(place: str) -> ModelShape:
    """The shape in a folder, or in a config.json itself."""
    url = place if place.endswith(".json") else join(place, "config.json")
    if not exists(url):
        raise TargetError(f"no config.json at {place}; name a model's folder or its config.json")
    value = read_json(url)
    if not isinstance(value, dict):
        raise TargetError(f"{url} isn't a JSON object; download the model again")
    return shape_of(value, place.removesuffix("/config.json").rstrip("/").rpartition("/")[2])


def shape_of(config: Mapping[str, Any], name: str = "model") -> ModelShape:
    """Read a configuration as Hugging Face writes it; multimodal ones hold the decoder's in `text_config`."""
    raw: Mapping[str, Any] = config.get("text_config") or config

    def size(*keys: str, default: int | None = None) -> int:
        for key in keys:
            if raw.get(key):
                return int(raw[key])
        if default is None:
            raise TargetError(f"config.json of {name} has no {keys[0]}; it isn't a decoder's configuration")
        return default

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    head_dim = size("head_dim", default=hidden // heads)
    kv_heads = size("num_key_value_heads", default=heads)
    experts = size("num_local_experts", "num_experts", "n_routed_experts", default=1)
    dense = 3 * hidden * size("intermediate_size")
    expert = 3 * hidden * size("moe_intermediate_size", "intermediate_size")
    shared = size("n_shared_experts", default=0) * expert
    if raw.get("model_type") == "llama4_text":  # one shared expert of the routed ones' size
        shared = expert
    return ModelShape(
        name=name or "model",
        layers=size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=size("vocab_size"),
        attention=hidden * head_dim * (2 * heads + 2 * kv_heads),
        mlp=expert if experts > 1 else dense,
        experts=experts,
        experts_used=size("num_experts_per_tok", default=1),
        shared_mlp=shared,
    )
