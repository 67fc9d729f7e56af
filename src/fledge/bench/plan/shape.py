"""Weights, FLOPs and KV bytes of a target and of its head, from `config.json` alone.

Supports any Hugging Face decoder with the usual keys, including mixtures of experts, even if fledge's engine can't run
it: the head may be served by SGLang or vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fledge.base.errors import TargetError
from fledge.base.storage import exists, join, read_json
from fledge.draft.options import HeadOptions, LayerSizes, TargetSizes
from fledge.target.config import as_transformers_reads


@dataclass(frozen=True)
class ModelShape:
    """Sizes that determine the cost of a forward. Counts are weights, not bytes."""

    name: str
    layers: int
    hidden: int
    vocab: int
    head: LayerSizes  # of the draft head that fledge would train
    attention: int  # weights of one layer's projections
    dense: int  # weights of all layers' dense MLPs together
    kv_width: int  # values one layer stores per token
    attention_flops: int  # FLOPs of one row for each token it sees in one layer: scores and weighted sum
    expert: int = 0  # weights of one expert
    expert_layers: int = 0  # layers that have experts
    experts: int = 1  # of such a layer
    experts_used: int = 1  # per token
    shared: int = 0  # further weights of such a layer used by every token
    windows: tuple[int, ...] = ()  # attention windows of the layers that have one
    architecture: str = ""
    quantised: str = ""  # method, if given in config.json

    @property
    def weights(self) -> int:
        """All weights a decode may read: layers and lm_head, without the embedding, of which one row is read."""
        return self._always + self.expert_layers * self.experts * self.expert

    def weights_read(self, rows: int) -> float:
        """Weights read by a forward over `rows` tokens, with the experts that these tokens choose on average."""
        missed = (1 - self.experts_used / self.experts) ** rows
        return self._always + self.expert_layers * self.experts * (1 - missed) * self.expert

    @property
    def weights_per_token(self) -> int:
        """Weights that one token is multiplied by."""
        return self._always + self.expert_layers * self.experts_used * self.expert

    @property
    def _always(self) -> int:
        layers = self.layers * self.attention + self.dense + self.expert_layers * self.shared
        return layers + self.hidden * self.vocab

    def seen(self, context: int) -> int:
        """Tokens visible to a row after `context` others, over all layers."""
        full_layers = self.layers - len(self.windows)
        return full_layers * context + sum(min(context, window) for window in self.windows)


@dataclass(frozen=True)
class HeadShape:
    """The EAGLE-3 head for a target: one layer whose attention reads embedding and feature side by side."""

    weights: int  # layer and lm_head over the draft vocabulary; what a draft step reads
    fc: int  # the projection of the three features, read only by draft-extend

    @classmethod
    def of(cls, target: ModelShape, draft_vocab: int = 32_000) -> HeadShape:
        """The head that fledge would train, with a draft vocabulary of this size."""
        c, hidden = target.head, target.hidden
        qkv, out = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, c.num_heads * c.head_dim
        layer = qkv * 2 * hidden + hidden * out + 3 * c.intermediate_size * hidden
        return cls(layer + min(draft_vocab, target.vocab) * hidden, 3 * hidden * hidden)


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
    """Read a Hugging Face configuration; multimodal ones contain the decoder's in `text_config`."""
    raw = _filled(config.get("text_config") or config)

    def size(*keys: str, default: int | None = None) -> int:
        for key in keys:
            if value := raw.get(key):
                if not isinstance(value, int):
                    raise TargetError(
                        f"config.json of {name} has no single number for {key}; plan another target"
                    )
                return value
        if default is None:
            raise TargetError(f"config.json of {name} has no {keys[0]}; it isn't a decoder's configuration")
        return default

    hidden, heads, layers = size("hidden_size"), size("num_attention_heads"), size("num_hidden_layers")
    head_dim = size("head_dim", default=hidden // heads)
    kv_heads = size("num_key_value_heads", default=heads)
    experts = size("num_local_experts", "num_experts", "n_routed_experts", default=1)
    mlp = size("intermediate_size", *(["moe_intermediate_size"] if experts > 1 else []))
    wide = size("intermediate_size_mlp", default=mlp)
    with_experts = _expert_layers(raw, layers) if experts > 1 else 0
    expert = size("moe_intermediate_size", "intermediate_size")
    # Llama 4 has one shared expert of the routed ones' size.
    shared = (
        expert if raw.get("model_type") == "llama4_text" else size("n_shared_experts", default=0) * expert
    )
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    kv_width, seeing = 2 * kv_heads * head_dim, 2 * heads * head_dim
    if raw.get("kv_lora_rank"):  # DeepSeek's latent attention: one key and value for all heads
        rank, turned = size("kv_lora_rank"), size("qk_rope_head_dim")
        key, value = size("qk_nope_head_dim") + turned, size("v_head_dim")
        query = size("q_lora_rank", default=0)
        attention = query * (hidden + heads * key) if query else hidden * heads * key
        attention += hidden * (rank + turned) + rank * heads * (key - turned + value) + heads * value * hidden
        kv_width, seeing = rank + turned, heads * (2 * rank + turned)
    quantised = config.get("quantization_config") or raw.get("quantization_config") or {}
    return ModelShape(
        name=name or "model",
        layers=layers,
        hidden=hidden,
        vocab=size("vocab_size"),
        head=HeadOptions().complete(
            TargetSizes(hidden, mlp, heads, kv_heads, head_dim, experts > 1, bool(raw.get("kv_lora_rank")))
        ),
        attention=attention,
        dense=(layers - with_experts) * 3 * hidden * wide,
        kv_width=kv_width,
        attention_flops=2 * seeing,
        expert=3 * hidden * expert,
        expert_layers=with_experts,
        experts=experts,
        experts_used=size("num_experts_per_tok", default=1),
        shared=3 * hidden * size("shared_expert_intermediate_size", default=shared),
        windows=_windows(raw, layers),
        architecture=str((config.get("architectures") or [""])[0]),
        quantised=str(quantised.get("quant_method") or ""),
    )


def _filled(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with transformers' defaults for missing keys, if it supports the model."""
    defaults = as_transformers_reads(raw) or {}
    given = {key: value for key, value in raw.items() if value is not None}
    return {**defaults, **given} if defaults else raw


def _expert_layers(raw: Mapping[str, Any], layers: int) -> int:
    """Layers with experts: all from the first to the last, every other, or all but a few."""
    step = int(raw.get("interleave_moe_layer_step") or raw.get("decoder_sparse_step") or 1)
    dense = {*range(int(raw.get("first_k_dense_replace") or 0)), *(raw.get("mlp_only_layers") or ())}
    return sum(layer not in dense for layer in range(step - 1, layers, step))


def _windows(raw: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The windows of layers that don't see the whole context."""
    window = int(raw.get("sliding_window") or raw.get("attention_chunk_size") or 0)
    if not window or raw.get("use_sliding_window") is False:
        return ()
    kinds = raw.get("layer_types") or ["sliding_attention"] * layers
    return (window,) * sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
