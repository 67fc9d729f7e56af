"""Writes a head in the form an engine or trainer loads: its tensor names and config.json.

form          layer's prefix   config.json                                      layer ids, if not the default layers
sglang        midlayer.        flat, LlamaForCausalLMEagle3                     nested, layers whose output is read
specforge     the same file: what SpecForge writes is what SGLang loads
eagle         midlayer.        flat, with the embedding where it is known       default layers only
vllm          layers.0.        flat, Eagle3LlamaForCausalLM                     top level, layers whose input is read
speculators   layers.0.        nested transformer_layer_config, eagle3          top level, layers whose input is read
eagle4        layers.0.        flat, LlamaForCausalLMEagle4, no other fields    nested, always; the whole vocabulary

llama.cpp's is one file (`gguf.py`).

Two conventions name the same features: "output of layer i" and "input of layer i + 1". fledge counts outputs.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fledge.base.errors import HeadError
from fledge.draft.description import LAYER, SWITCHES, TENSORS, WINDOW, WINDOW_SINKS, HeadConfig
from fledge.draft.provenance import HeadMetadata, HeadParts
from fledge.draft.vocabulary import DraftVocabulary
from fledge.heads.fields import EAGLE4, LAYER_IDS
from fledge.target.config import engine_feature_layers

Form = Literal["sglang", "specforge", "eagle", "vllm", "speculators", "eagle4"]
FORMS: tuple[Form, ...] = get_args(Form)

LATER_LAYER = "layers.0"
CANDIDATES, LOW_RANK = "efficient_lm_head_config", "low_rank"  # EAGLE-4's field, and its type


def check_form(name: str) -> Form:
    """The form with that name."""
    for form in FORMS:
        if name == form:
            return form
    if name in ("llama.cpp", "llamacpp", "llama-cpp", "ollama"):
        raise HeadError(f"no checkpoint form {name!r}: use gguf, which llama.cpp reads")
    raise HeadError(f"no checkpoint form {name!r}: use one of {', '.join(FORMS)}, gguf")


def form_tensors(
    head: HeadParts, form: Form, dtype: torch.dtype | None = torch.bfloat16
) -> dict[str, Tensor]:
    """The head's tensors under the form's names; `dtype` None keeps each tensor's own."""
    later = form in ("vllm", "speculators", "eagle4")
    named = {
        name.replace(f"{LAYER}.", f"{LATER_LAYER}.") if later else name: tensor.to(dtype or tensor.dtype)
        for name, tensor in canonical_tensors(head).items()
    }
    if form == "eagle4":
        return {name: tensor.contiguous() for name, tensor in named.items()}
    named["d2t"] = head.weights.d2t.long()
    vocabulary = DraftVocabulary.from_offsets(head.weights.d2t, head.config.vocab_size)
    named["t2d"] = vocabulary.t2d
    return {name: tensor.contiguous() for name, tensor in named.items()}


def canonical_tensors(head: HeadParts) -> dict[str, Tensor]:
    """The head's floating-point tensors with their canonical names."""
    tensors: dict[str, Tensor] = {}
    for name, info in TENSORS.items():
        tensor = getattr(head.weights, name)
        if tensor is not None and tensor.is_floating_point():
            tensors |= info.split(head.config, tensor)
    return tensors


def form_config(head: HeadParts, form: Form, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of the form."""
    c, m = head.config, head.metadata
    torch_dtype = str(dtype).removeprefix("torch.")
    if form == "eagle4":
        return _eagle4_config(head, torch_dtype)
    if form == "speculators":
        return _speculators_config(c, m, torch_dtype)
    flat = {
        "architectures": ["Eagle3LlamaForCausalLM" if form == "vllm" else "LlamaForCausalLMEagle3"],
        **_layer_config(c, torch_dtype),
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": c.target_hidden_size,
        **dict.fromkeys(c.switches, True),
        **_candidates(c),
        **_layer_ids(m, form),
        "fledge": _provenance(m),
    }
    if form == "eagle" and head.weights.embedding is None:
        # EAGLE's code uses the target's embedding only if this field is absent.
        _require_same_size(c, "eagle", "name the target, so that the embedding is added")
        del flat["target_hidden_size"]
    return flat


def _layer_config(c: HeadConfig, torch_dtype: str) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": torch_dtype,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "rope_scaling": c.rope_scaling,
        "max_position_embeddings": c.max_position_embeddings,
        "vocab_size": c.vocab_size,
        **({WINDOW: c.window, WINDOW_SINKS: c.sinks} if c.window else {}),
    }


def _eagle4_config(head: HeadParts, torch_dtype: str) -> dict[str, Any]:
    """EAGLE-4's, without provenance: its loaders refuse fields that they don't know."""
    c = head.config
    if c.draft_vocab_size != c.vocab_size:
        raise HeadError(
            f"an EAGLE-4 head scores the whole vocabulary, but this one {c.draft_vocab_size} of {c.vocab_size} tokens: "
            f"train it on with train.init_head and train.draft_vocab_size={c.vocab_size}"
        )
    if head.weights.embedding is None:
        raise HeadError("an EAGLE-4 head includes its target's embedding: name the target")
    layer = _layer_config(c, torch_dtype)
    layer.pop(WINDOW_SINKS, None)  # there are none in EAGLE-4
    return {
        "architectures": [EAGLE4],
        **layer,
        **dict.fromkeys(c.switches, True),
        **_candidates(c),
        **_nested_ids(list(head.metadata.feature_layers)),
    }


def _nested_ids(outputs: list[int]) -> dict[str, Any]:
    if not outputs:
        return {}
    return {"eagle_config": {LAYER_IDS: outputs, "use_aux_hidden_state": True}}


def _candidates(c: HeadConfig) -> dict[str, Any]:
    if not c.candidates:
        return {}
    return {CANDIDATES: {"type": LOW_RANK, "rank": c.candidate_rank, "num_candidates": c.candidates}}


def _speculators_config(c: HeadConfig, m: HeadMetadata, torch_dtype: str) -> dict[str, Any]:
    _require_same_size(c, "speculators", "use the sglang or vllm form")
    layer = _layer_config(c, torch_dtype) | {"attention_bias": False, "mlp_bias": False}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {
                "name_or_path": m.target_name or None,
                "architectures": [m.target_architecture] if m.target_architecture else [],
            },
        },
        "transformer_layer_config": layer,
        "tie_word_embeddings": False,
        "torch_dtype": torch_dtype,
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": None,
        # Explicit: the trainer and vLLM have different defaults.
        **{name: getattr(c, name) for name in SWITCHES},
        "norm_before_fc": False,
        **_layer_ids(m, "speculators"),
        "fledge": _provenance(m),
    }


def _layer_ids(m: HeadMetadata, form: Form) -> dict[str, Any]:
    """The layer ids in the form's convention; empty for the default layers, which all engines share."""
    if not m.feature_layers or m.feature_layers == engine_feature_layers(m.target_layers):
        return {}
    outputs = list(m.feature_layers)
    if form == "eagle":
        raise HeadError(
            f"EAGLE's own code reads fixed layers, but this head reads {outputs}: use the sglang or vllm form"
        )
    if form in ("vllm", "speculators"):
        return {"eagle_aux_hidden_state_layer_ids": [i + 1 for i in outputs]}
    return _nested_ids(outputs)


def _provenance(m: HeadMetadata) -> dict[str, Any]:
    provenance: dict[str, Any] = {
        "target_name": m.target_name,
        "target_revision": m.target_revision,
        "vocabulary_hash": m.vocabulary_hash,
        "template_hash": m.template_hash,
    }
    if m.target_quantization:
        provenance["target_quantization"] = m.target_quantization
    if m.chat_template_kwargs:
        provenance["chat_template_kwargs"] = dict(m.chat_template_kwargs)
    if m.target_architecture:
        provenance["target_architecture"] = m.target_architecture
    if m.feature_layers:
        provenance |= {"target_layers": m.target_layers, "feature_layers": list(m.feature_layers)}
    return provenance | {"training": dict(m.training)}


def _require_same_size(c: HeadConfig, form: str, remedy: str) -> None:
    if c.target_hidden_size != c.hidden_size:
        raise HeadError(
            f"a head of hidden size {c.hidden_size} for a target of {c.target_hidden_size} "
            f"can't be written in the {form} form: {remedy}"
        )
