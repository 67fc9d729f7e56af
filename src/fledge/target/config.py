"""The shape of a target: what `config.json` says, in one form for every supported architecture."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fledge.base.errors import TargetError
from fledge.native.abi import MOST_NODES
from fledge.target import families
from fledge.target.experts import ExpertsConfig
from fledge.target.families import SUPPORTED_ARCHITECTURES, Family
from fledge.target.rope_fields import SUPPORTED_SCALING, read_rope, rotary_share
from fledge.target.switches import unknown_switches

# The head's teacher is hidden state times lm_head.
_CHANGED_LOGITS = (
    "final_logit_softcapping",
    "final_logits_softcapping",
    "lm_head_multiplier",
    "logit_scale",
    "logit_softcapping",
    "logits_mup_width_multiplier",
    "logits_scaling",
    "logits_soft_cap",
    "mup_width_multiplier",
    "output_multiplier",
)


def engine_feature_layers(n: int) -> tuple[int, int, int] | None:
    """The layers every engine takes when a head names none, counted by output; None for targets too small for them.

    `[1, n/2-1, n-4]` as in SpecForge, which is the same as the input of layers `[2, n/2, n-3]` (EAGLE, vLLM).
    """
    low, middle, high = 1, n // 2 - 1, n - 4
    return (low, middle, high) if low < middle < high else None


def default_feature_layers(n: int) -> tuple[int, int, int]:
    """The layers (0-based) of n whose OUTPUT residual stream is the low, middle and high feature.

    As every engine takes them; below 7 layers first, middle and last.
    """
    return engine_feature_layers(n) or (0, (n - 1) // 2, n - 1)


def are_three_layers(layers: Sequence[int], below: int | None = None) -> bool:
    """True if these are three layers in order, counted from 0, of a target with `below` layers; None: of any."""
    return (
        len(layers) == 3 and 0 <= layers[0] < layers[1] < layers[2] and (below is None or layers[2] < below)
    )


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and switches of a Llama-family decoder."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None  # with "rope_type"; None: plain RoPE
    max_position_embeddings: int  # as far as the decoder goes
    own_positions: int  # the model's, which other engines serve
    tie_word_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    experts: ExpertsConfig | None = None  # None: every MLP is dense
    rope_free_layers: tuple[int, ...] = ()  # Llama 4 and SmolLM3: layers without rotary embedding
    window: int = 0  # how many tokens a row of a windowed layer sees, its own with them
    windowed_layers: tuple[int, ...] = ()
    # Gemma 3: windowed layers' RoPE base, without scaling; None: that of all layers
    window_rope_theta: float | None = None
    query_scale: float | None = None  # Gemma 3 and Granite: of scores; None: head_dim ** -0.5
    embedding_scale: float = 1.0  # Gemma 3 and Granite
    residual_scale: float = 1.0  # Granite: of what attention and MLP add to the residual
    logit_scale: float = 1.0  # Granite
    activation: str = "silu"  # or "gelu": its tanh form
    out_norms: bool = False  # Gemma 3: what attention and MLP add to the residual is normed first
    o_bias: bool = False  # GPT-OSS: attention's last projection has one
    sinks: bool = False  # GPT-OSS: a logit of each query head takes its part of the softmax
    mixture: bool = False  # any layer has experts
    latent_attention: bool = False  # DeepSeek: keys and values are compressed
    # Why fledge's decoder can't run it, if it can't; a head can be trained all the same.
    undecodable: str = ""
    chosen_layers: tuple[int, int, int] | None = None  # None: the default feature layers

    @property
    def feature_layers(self) -> tuple[int, int, int]:
        """Layers (0-based) whose OUTPUT residual stream is the low, middle and high feature."""
        return self.chosen_layers or default_feature_layers(self.num_layers)

    def with_feature_layers(self, layers: Sequence[int]) -> DecoderConfig:
        """This shape with features of other layers, counted by output. Raises a TargetError for ones it hasn't."""
        if not are_three_layers(layers, self.num_layers):
            raise TargetError(
                f"feature layers {', '.join(map(str, layers))} can't be: name three of this target's layers, in order, "
                f"from 0 to {self.num_layers - 1}"
            )
        low, middle, high = layers
        return replace(self, chosen_layers=(low, middle, high))

    @property
    def qkv_size(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def kv_size(self) -> int:
        """Numbers that a token keeps in the KV pool, keys and values of all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim

    @property
    def weight_count(self) -> int:
        """Weights of all matrices, the embedding with them."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        widths = self.num_layers * self.intermediate_size  # of all MLPs together
        if e := self.experts:
            routed = len(e.layers) * (e.count * e.intermediate_size + e.shared_size)
            widths = routed + (self.num_layers - len(e.layers)) * e.dense_size
        return self.num_layers * attention + 3 * self.hidden_size * widths + embeddings

    @classmethod
    def from_folder(cls, folder: Path) -> DecoderConfig:
        """Read `config.json` of an HF folder."""
        raw, path = read_config(folder), folder / "config.json"
        try:
            return cls.from_hf(raw)
        except (TypeError, ValueError) as error:
            raise TargetError(f"{path} can't be used ({error}): download the model again") from error

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> DecoderConfig:
        """Translate an HF configuration, as written by transformers 4 or 5; of a multimodal one, the text part."""
        name = architecture = architecture_of(raw)
        family = families.find(architecture)
        text = raw.get("text_config") or {}
        tied = {**text, **raw}.get("tie_word_embeddings")  # the whole model's flag counts
        if family.defaults is not None and architecture in family.architectures:
            raw = {**family.defaults, **family.rename({**raw, **text})}
        else:
            quantised = raw.get("quantization_config")  # of the whole model
            read = family.rename(as_transformers_reads(raw) or {**raw, **text})
            raw = {"quantization_config": quantised, **read}
            if tied is None and architecture in family.architectures:
                tied = raw.get("tie_word_embeddings")
        text_type = family.text_models.get(architecture)
        if text_type is not None and raw.get("model_type") != text_type:  # a Mistral 3 may hold another kind
            name = f"{architecture} around {raw.get('model_type')}"
            family = families.find(name)
        _refuse_changed_logits(raw, family)

        def size(name: str) -> int:
            return _integer(raw.get(name), family.config_name(name))

        mixture = any(
            isinstance(raw.get(name), int) and raw[name] > 1
            for name in ("num_local_experts", "num_experts", "n_routed_experts")
        )
        every_mlp = raw.get("intermediate_size") or not mixture  # Qwen3.5-MoE has experts alone

        hidden_size, num_heads = size("hidden_size"), size("num_attention_heads")
        max_positions, num_layers = size("max_position_embeddings"), size("num_hidden_layers")
        theta, scaling = read_rope(raw, max_positions)
        window, windowed_layers = int(raw.get("sliding_window") or 0), tuple(family.windowed_layers(raw))
        if not (0 < window < max_positions and windowed_layers):  # all see the whole context
            window, windowed_layers = 0, ()
        undecodable = _undecodable(raw, name, family, scaling, window, windowed_layers)
        if scaling is not None and scaling["rope_type"] not in SUPPORTED_SCALING:
            scaling = None  # for the head, whose RoPE is its own
        plain = cls(
            architecture=architecture,
            num_layers=num_layers,
            hidden_size=hidden_size,
            intermediate_size=size("intermediate_size" if every_mlp else "moe_intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
            vocab_size=size("vocab_size"),
            rms_norm_eps=_epsilon(raw.get("rms_norm_eps", 1e-6), family.config_name("rms_norm_eps")),
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=max_positions,
            own_positions=max_positions,
            tie_word_embeddings=bool(tied),
            qkv_bias=False,
            qk_norm=False,
            mixture=mixture,
            latent_attention=bool(raw.get("kv_lora_rank")),
            undecodable=undecodable,
            window=window,
            windowed_layers=windowed_layers,
        )
        try:
            return replace(plain, **family.fields(raw))
        except KeyError as error:
            raise TargetError(f"config.json has no {error.args[0]}: download the model again") from None


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of an HF folder."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TargetError(f"{folder} has no config.json: give a folder saved by save_pretrained") from None
    except (OSError, ValueError) as error:
        raise TargetError(f"can't read {path}: {error}. Download the model again") from error
    if not isinstance(raw, dict):
        raise TargetError(f"{path} isn't a JSON object: download the model again")
    return raw


def architecture_of(raw: Mapping[str, Any]) -> str:
    """The architecture that config.json names; of several, the first that has a family."""
    names = [str(name) for name in raw.get("architectures") or []]
    known = [name for name in names if name in SUPPORTED_ARCHITECTURES]
    return (known or names or [f"model_type {raw.get('model_type')!r}"])[0]


def as_transformers_reads(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """All fields of the text model, also those that config.json leaves to its class, as Gemma 3's does.

    None: transformers doesn't know the model, or can't read its config, as it says when it loads it.
    """
    from transformers import CONFIG_MAPPING  # a moment to import, and few targets need it

    if raw.get("model_type") not in CONFIG_MAPPING:
        return None
    try:
        own = copy.deepcopy(dict(raw))  # it writes into what it gets
        config = CONFIG_MAPPING[raw["model_type"]].from_dict(own)
        fields: dict[str, Any] = config.get_text_config(decoder=True).to_dict()
    except Exception:  # its validation has types of its own
        return None
    return fields


def _undecodable(
    raw: Mapping[str, Any],
    name: str,
    family: Family,
    scaling: Mapping[str, Any] | None,
    window: int,
    windowed: Sequence[int],
) -> str:
    """Why the decoder can't run such a target, which it would compute wrongly; empty if it can."""
    if not family.architectures:
        return f"its architecture is {name}, and the decoder knows {', '.join(SUPPORTED_ARCHITECTURES)}"
    problems = []
    activation = raw.get("hidden_act", family.activations[0])
    if activation not in family.activations:
        problems.append(f"{family.config_name('hidden_act')}={activation!r} ({family.activations[0]})")
    if 0 < window < MOST_NODES:  # a node of a tree has to see all of its ancestors
        problems.append(f"sliding_window={window} ({MOST_NODES} or more)")
    if (share := rotary_share(raw)) != 1.0:
        problems.append(f"partial_rotary_factor={share:g} (1.0)")
    quantised = raw.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
    if quantised and method not in family.quantisations:
        problems.append("quantization_config (unquantised weights, or GPT-OSS' in MXFP4)")
    if scaling is not None and scaling["rope_type"] not in family.rope_scalings:
        problems.append(f"RoPE scaling {scaling['rope_type']!r} ({', '.join(family.rope_scalings)})")
    problems += unknown_switches(raw, family.understood, windowed)
    return f"it uses {', '.join(problems)}; in brackets what the decoder knows" if problems else ""


def _refuse_changed_logits(raw: Mapping[str, Any], family: Family) -> None:
    """Refuse a target whose logits aren't hidden state times lm_head: a head would learn other probabilities."""
    names = [key for key in _CHANGED_LOGITS if key not in family.understood]
    found = [f"{key}={raw[key]}" for key in names if raw.get(key) not in (None, 1, 1.0)]
    if raw.get("dim_model_base") not in (None, raw.get("hidden_size")):  # MiniCPM divides by their ratio
        found.append(f"dim_model_base={raw['dim_model_base']}")
    if found:
        raise TargetError(
            f"the target changes its logits ({', '.join(found)}), which isn't supported: use another"
        )


def _integer(value: Any, name: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise TargetError(
            f"config.json has {name}={value!r}, not a positive number: download the model again, or use another target "
            "if its architecture knows no such number"
        )
    return value


def _epsilon(value: Any, name: str) -> float:
    if not isinstance(value, float) or not value > 0:
        raise TargetError(
            f"config.json has {name}={value!r}, not a positive number: download the model again"
        )
    return float(f"{value:.7g}")  # GGUF keeps 1e-5 as 9.9999997e-06
