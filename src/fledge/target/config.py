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
from fledge.target.experts import ExpertsConfig
from fledge.target.rope_fields import SUPPORTED_SCALING, read_rope, rotary_share

# Architectures whose configs leave much to their class, differently for each size: read as transformers does.
_READ_BY_TRANSFORMERS = (
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "GptOssForCausalLM",
    "SmolLM3ForCausalLM",
)
_LLAMA4 = {"max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5}
_QWEN = {"max_position_embeddings": 32768, "sliding_window": 4096}
# transformers' defaults of fields that config.json may leave out, where architectures differ in them.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "GraniteForCausalLM": {"max_position_embeddings": 2048},
    "LlamaForCausalLM": {"max_position_embeddings": 2048},
    "Llama4ForCausalLM": _LLAMA4,
    "Llama4ForConditionalGeneration": _LLAMA4,
    "MistralForCausalLM": {"max_position_embeddings": 131072, "sliding_window": 4096},
    "MixtralForCausalLM": {"max_position_embeddings": 131072, "rope_theta": 1e6, "rms_norm_eps": 1e-5},
    "Phi3ForCausalLM": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": _QWEN,
    "Qwen3MoeForCausalLM": _QWEN,
}
# Multimodal checkpoints whose text model, given text alone, is one of those; and what its config calls it.
_TEXT_MODELS = {
    "Mistral3ForConditionalGeneration": ("MistralForCausalLM", "mistral"),
    "Qwen2VLForConditionalGeneration": ("Qwen2ForCausalLM", "qwen2_vl_text"),
    "Qwen2_5_VLForConditionalGeneration": ("Qwen2ForCausalLM", "qwen2_5_vl_text"),
    "Qwen3VLForConditionalGeneration": ("Qwen3ForCausalLM", "qwen3_vl_text"),
}
SUPPORTED_ARCHITECTURES = (*_DEFAULTS, *_READ_BY_TRANSFORMERS, *_TEXT_MODELS)
_GEMMA_ACTIVATION = ("hidden_activation", ("gelu_pytorch_tanh",))
_ACTIVATIONS = dict.fromkeys(_READ_BY_TRANSFORMERS[:2], _GEMMA_ACTIVATION)
# The head's teacher is hidden state times lm_head.
_CHANGED_LOGITS = (
    "final_logit_softcapping",
    "lm_head_multiplier",
    "logit_scale",
    "logits_mup_width_multiplier",
    "logits_scaling",
    "output_multiplier",
)


def engine_feature_layers(n: int) -> tuple[int, int, int] | None:
    """The layers every engine takes when a head names none, counted by output; None for targets too small for them.

    `[1, n/2-1, n-4]` as in SpecForge, which is the same as the input of layers `[2, n/2, n-3]` (EAGLE, vLLM).
    """
    low, middle, high = 1, n // 2 - 1, n - 4
    return (low, middle, high) if low < middle < high else None


def default_feature_layers(n: int) -> tuple[int, int, int]:
    """Of n layers, those (0-based) whose OUTPUT residual stream is the low, middle and high feature.

    As every engine takes them; below 7 layers first, middle and last.
    """
    return engine_feature_layers(n) or (0, (n - 1) // 2, n - 1)


def are_three_layers(layers: Sequence[int], below: int | None = None) -> bool:
    """Whether these are three layers in order, counted from 0, of a target with `below` layers; None: of any."""
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
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TargetError(
                f"{folder} has no config.json: give a folder saved by save_pretrained"
            ) from None
        except (OSError, ValueError) as error:
            raise TargetError(f"can't read {path}: {error}. Download the model again") from error
        if not isinstance(raw, dict):
            raise TargetError(f"{path} isn't a JSON object: download the model again")
        try:
            return cls.from_hf(raw)
        except (TypeError, ValueError) as error:
            raise TargetError(f"{path} can't be used ({error}): download the model again") from error

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> DecoderConfig:
        """Translate an HF configuration, as written by transformers 4 or 5; of a multimodal one, the text part."""
        architecture = _architecture(raw)
        text = raw.get("text_config") or {}
        tied = {**text, **raw}.get("tie_word_embeddings")  # the whole model's flag counts
        if architecture in _DEFAULTS:
            raw = {**_DEFAULTS[architecture], **raw, **text}
        else:
            quantised = raw.get("quantization_config")  # of the whole model
            raw = {"quantization_config": quantised, **(as_transformers_reads(raw) or {**raw, **text})}
        # The decoder's own architecture: of a multimodal checkpoint, its text model's.
        family, text_type = _TEXT_MODELS.get(architecture, (architecture, raw.get("model_type")))
        if raw.get("model_type") != text_type:  # a Mistral 3 may hold a text model of another kind
            family = f"{architecture} around {raw.get('model_type')}"
        if tied is None and architecture in _READ_BY_TRANSFORMERS:
            tied = raw.get("tie_word_embeddings")
        _refuse_changed_logits(raw, family)
        hidden_size, num_heads = _integer(raw, "hidden_size"), _integer(raw, "num_attention_heads")
        max_positions = _integer(raw, "max_position_embeddings")
        theta, scaling = read_rope(raw, max_positions)
        window, windowed_layers = _windowed_layers(raw, family, max_positions)
        undecodable = _undecodable(raw, family, scaling, window)
        if scaling is not None and scaling["rope_type"] not in SUPPORTED_SCALING:
            scaling = None  # for the head, whose RoPE is its own
        return cls(
            architecture=architecture,
            num_layers=_integer(raw, "num_hidden_layers"),
            hidden_size=hidden_size,
            intermediate_size=_integer(raw, "intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
            vocab_size=_integer(raw, "vocab_size"),
            rms_norm_eps=_epsilon(raw),
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=min(max_positions, _longest_context(raw, family) or max_positions),
            own_positions=max_positions,
            tie_word_embeddings=bool(tied),
            qkv_bias=family == "Qwen2ForCausalLM" or _is_biased_gpt_oss(raw, family),
            qk_norm=family.startswith(("Qwen3", "Gemma3")) or _is_llama4_normed(raw, family),
            experts=_experts(raw, family),
            rope_free_layers=_rope_free_layers(raw, family),
            undecodable=undecodable,
            window=window,
            windowed_layers=windowed_layers,
            o_bias=_is_biased_gpt_oss(raw, family),
            sinks=family == "GptOssForCausalLM",
            **(_gemma3(raw, hidden_size) if family.startswith("Gemma3") else {}),
            **(_granite(raw) if family == "GraniteForCausalLM" else {}),
        )


def _architecture(raw: Mapping[str, Any]) -> str:
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
    raw: Mapping[str, Any], architecture: str, scaling: Mapping[str, Any] | None, window: int
) -> str:
    """Why the decoder can't run such a target, which it would compute wrongly; empty if it can."""
    if architecture not in SUPPORTED_ARCHITECTURES:
        return (
            f"its architecture is {architecture}, and the decoder knows {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    problems = []
    name, known_activations = _ACTIVATIONS.get(architecture, ("hidden_act", ("silu", "swish")))
    if raw.get(name, known_activations[0]) not in known_activations:
        problems.append(f"{name}={raw[name]!r} ({known_activations[0]})")
    if raw.get("attn_logit_softcapping"):
        problems.append(f"attn_logit_softcapping={raw['attn_logit_softcapping']} (none)")
    if raw.get("use_bidirectional_attention"):
        problems.append("use_bidirectional_attention=true (false)")
    if 0 < window < MOST_NODES:  # a node of a tree has to see all of its ancestors
        problems.append(f"sliding_window={window} ({MOST_NODES} or more)")
    if architecture not in ("GptOssForCausalLM", "Qwen2ForCausalLM") and raw.get("attention_bias"):
        problems.append("attention_bias=true (false)")
    if raw.get("mlp_bias"):
        problems.append("mlp_bias=true (false)")
    if (share := rotary_share(raw)) != 1.0:
        problems.append(f"partial_rotary_factor={share:g} (1.0)")
    if raw.get("quantization_config") and not _is_mxfp4(raw, architecture):
        problems.append("quantization_config (unquantised weights, or GPT-OSS' in MXFP4)")
    # Llama 4's norms come after RoPE and take back the factor that yarn puts on it.
    known = [kind for kind in SUPPORTED_SCALING if kind != "yarn" or not architecture.startswith("Llama4")]
    if scaling is not None and scaling["rope_type"] not in known:
        problems.append(f"RoPE scaling {scaling['rope_type']!r} ({', '.join(known)})")
    return f"it uses {', '.join(problems)}; in brackets what the decoder knows" if problems else ""


def _refuse_changed_logits(raw: Mapping[str, Any], architecture: str) -> None:
    """Refuse a target whose logits aren't hidden state times lm_head: a head would learn other probabilities."""
    known = ("logits_scaling",) if architecture == "GraniteForCausalLM" else ()
    names = [key for key in _CHANGED_LOGITS if key not in known]
    found = [f"{key}={raw[key]}" for key in names if raw.get(key) not in (None, 1, 1.0)]
    if found:
        raise TargetError(
            f"the target changes its logits ({', '.join(found)}), which isn't supported: use another"
        )


def _integer(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or value < 1:
        raise TargetError(
            f"config.json has {key}={value!r}, not a positive number: download the model again, or use another target "
            "if its architecture knows no such number"
        )
    return value


def _epsilon(raw: Mapping[str, Any]) -> float:
    value = raw.get("rms_norm_eps", 1e-6)
    if not isinstance(value, float) or not value > 0:
        raise TargetError(
            f"config.json has rms_norm_eps={value!r}, not a positive number: download the model again"
        )
    return float(f"{value:.7g}")  # GGUF keeps 1e-5 as 9.9999997e-06


def _longest_context(raw: Mapping[str, Any], architecture: str) -> int | None:
    """The longest context for which the decoder computes what the target does; None: the target's own.

    The decoder has neither Llama 4's chunked attention, which is full attention up to the first chunk's end, nor the
    temperature of its layers without RoPE, which is 1 up to `floor_scale`.
    """
    if not architecture.startswith("Llama4"):
        return None
    return min(int(raw.get("attention_chunk_size") or 8192), int(raw.get("floor_scale") or 8192) - 1)


def _windowed_layers(
    raw: Mapping[str, Any], architecture: str, positions: int
) -> tuple[int, tuple[int, ...]]:
    """How many tokens windowed layers see, and which those are; 0 and none where all see the whole context."""
    window = int(raw.get("sliding_window") or 0)
    if architecture.startswith("Llama") or architecture not in SUPPORTED_ARCHITECTURES:
        return 0, ()
    if architecture.startswith(("Qwen", "SmolLM3")) and not raw.get("use_sliding_window", False):
        return 0, ()
    every, kinds = range(int(raw["num_hidden_layers"])), raw.get("layer_types")
    if architecture in ("Qwen2ForCausalLM", "Qwen3ForCausalLM") and not kinds:
        first = int(raw.get("max_window_layers", 28))
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in every]
    windowed = tuple(layer for layer in every if not kinds or kinds[layer] == "sliding_attention")
    return (window, windowed) if 0 < window < positions and windowed else (0, ())


def _gemma3(raw: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    """What Gemma 3 (arXiv 2503.19786) has and Llama hasn't."""
    local = (raw.get("rope_parameters") or {}).get("sliding_attention") or {}
    return {
        "window_rope_theta": float(local.get("rope_theta") or raw.get("rope_local_base_freq") or 10000.0),
        "query_scale": float(raw.get("query_pre_attn_scalar") or 256) ** -0.5,
        "embedding_scale": hidden_size**0.5,
        "activation": "gelu",
        "out_norms": True,
    }


def _granite(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What Granite's four multipliers are where Llama has 1, and of scores head_dim ** -0.5."""
    return {
        "query_scale": float(raw.get("attention_multiplier") or 1.0),
        "embedding_scale": float(raw.get("embedding_multiplier") or 1.0),
        "residual_scale": float(raw.get("residual_multiplier") or 1.0),
        "logit_scale": 1.0 / float(raw.get("logits_scaling") or 1.0),
    }


def _experts(raw: Mapping[str, Any], architecture: str) -> ExpertsConfig | None:
    try:
        return ExpertsConfig.from_hf(raw, architecture)
    except KeyError as error:
        raise TargetError(f"config.json has no {error.args[0]}: download the model again") from None


def _is_llama4_normed(raw: Mapping[str, Any], architecture: str) -> bool:
    return architecture.startswith("Llama4") and bool(raw.get("use_qk_norm", True))


def _is_biased_gpt_oss(raw: Mapping[str, Any], architecture: str) -> bool:
    return architecture == "GptOssForCausalLM" and bool(raw.get("attention_bias", True))


def _is_mxfp4(raw: Mapping[str, Any], architecture: str) -> bool:
    """Whether the weights of experts, and no others, are quantised, as OpenAI publishes GPT-OSS."""
    quantised = raw["quantization_config"]
    named = isinstance(quantised, Mapping) and quantised.get("quant_method") == "mxfp4"
    return named and architecture == "GptOssForCausalLM"


def _rope_free_layers(raw: Mapping[str, Any], architecture: str) -> tuple[int, ...]:
    """Llama 4's and SmolLM3's layers without RoPE: zeros of `no_rope_layers`, or every so many-th."""
    if not architecture.startswith(("Llama4", "SmolLM3")):
        return ()
    layers, every = int(raw["num_hidden_layers"]), int(raw.get("no_rope_layer_interval") or 4)
    turned = raw.get("no_rope_layers") or [(layer + 1) % every for layer in range(layers)]
    return tuple(layer for layer, has_rope in enumerate(turned) if not has_rope)
