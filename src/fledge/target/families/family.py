"""Description of an architecture: how its config.json and its tensors differ from Llama's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fledge.sources.gguf_header import GgufHeader
from fledge.target.experts import ExpertsConfig, ExpertWeights
from fledge.target.rope_fields import SUPPORTED_SCALING
from fledge.target.tensors import TensorSource

Fields = Mapping[str, Any]


def listed_windows(raw: Fields) -> Sequence[int]:
    """The layers that `layer_types` calls sliding; all layers where it is missing."""
    kinds, every = raw.get("layer_types"), range(int(raw["num_hidden_layers"]))
    return [layer for layer in every if not kinds or kinds[layer] == "sliding_attention"]


def enabled_windows(raw: Fields) -> Sequence[int]:
    """The same where `use_sliding_window` is true, else none."""
    return listed_windows(raw) if raw.get("use_sliding_window", False) else ()


def read_each_expert(source: TensorSource, place: str, experts: ExpertsConfig, hidden: int) -> ExpertWeights:
    """Experts with three matrices each: `<place>.experts.0.gate_proj.weight` and so on, the router `<place>.gate`."""
    count, inner = experts.count, experts.intermediate_size
    router = source.read(f"{place}.gate.weight", count, hidden)
    gate_ups, downs = router.new_empty(count, 2 * inner, hidden), router.new_empty(count, hidden, inner)
    for expert in range(count):
        own = f"{place}.experts.{expert}"
        gate_ups[expert, :inner] = source.read(f"{own}.gate_proj.weight", inner, hidden)
        gate_ups[expert, inner:] = source.read(f"{own}.up_proj.weight", inner, hidden)
        downs[expert] = source.read(f"{own}.down_proj.weight", hidden, inner)
    return ExpertWeights(router, gate_ups, downs)


@dataclass(frozen=True)
class Gguf:
    """An architecture as llama.cpp's converter writes it."""

    model_types: Mapping[str, str]  # for each of its names in GGUF, model_type in config.json
    # What config.json has beyond a Llama's, from the metadata and from what config.json has so far.
    fields: Callable[[GgufHeader, Fields], Fields] = lambda header, config: {}
    interleaved: bool = False  # rows of q and k are reordered, dimension 2i rotates with 2i + 1


@dataclass(frozen=True)
class Family:
    """Where an architecture differs from Llama, whose values are the defaults.

    The functions get config.json under Llama's names, with defaults filled in; of a multimodal model, its text part.
    """

    architectures: tuple[str, ...]  # as config.json names them
    # Multimodal architectures around such a text model, each with the model_type that its text_config must have.
    text_models: Mapping[str, str] = field(default_factory=dict)

    # config.json. The names it has for Llama's fields: {"hidden_size": "n_embd"}
    config_names: Mapping[str, str] = field(default_factory=dict)
    # transformers' defaults of fields that may be missing; None: they depend on the model, so transformers reads it.
    defaults: Fields | None = field(default_factory=dict)
    # The fields of `DecoderConfig` that aren't a Llama's.
    fields: Callable[[Fields], Fields] = lambda raw: {}
    # Layers that see `sliding_window` tokens.
    windowed_layers: Callable[[Fields], Sequence[int]] = listed_windows
    # What is accepted: values of hidden_act, RoPE scalings, quantisations, and fields and kinds of layers that are
    # refused elsewhere (`switches.py`, logits_scaling), because `fields` takes them into account.
    activations: tuple[str, ...] = ("silu", "swish")
    rope_scalings: tuple[str, ...] = SUPPORTED_SCALING
    quantisations: tuple[str, ...] = ()
    understood: tuple[str, ...] = ()

    # Tensors. The names it has for parts of Llama's, between dots: {"mlp": "ffn"}
    tensor_names: Mapping[str, str] = field(default_factory=dict)
    fused: bool = False  # q, k and v in one `qkv_proj`, gate and up in one `gate_up_proj`
    interleaved_rope: bool = False  # dimension 2i rotates with 2i + 1
    norm_adds_one: bool = False  # norms multiply by 1 + weight
    qk_norm_weights: bool = True  # False: q and k are normed without weights, in layers with RoPE alone
    read_experts: Callable[[TensorSource, str, ExpertsConfig, int], ExpertWeights] = read_each_expert
    gguf: Gguf | None = None  # None: its GGUF files aren't read

    def config_name(self, name: str) -> str:
        """Name in config.json of a field of Llama's."""
        return self.config_names.get(name, name)

    def rename(self, raw: Fields) -> dict[str, Any]:
        """config.json under Llama's names."""
        others = {name: value for name, value in raw.items() if name not in self.config_names}
        return others | {ours: raw[own] for ours, own in self.config_names.items() if own in raw}
