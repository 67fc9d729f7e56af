"""Fields of a head's config.json: those read, those that can't change what it computes, and why others are refused.

A head whose config names a window, a bias or a part that fledge doesn't compute would run without it and accept less,
with no error. So a field that is on neither list is refused by its name, unless its value switches nothing on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fledge.draft.description import SINKS, SWITCHES, WINDOW, WINDOW_SINKS
from fledge.target.rope_fields import rope_parameters, rotary_share

EAGLE4 = "LlamaForCausalLMEagle4"  # the class of a head with a window and candidates
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
OTHER_LAYER_IDS = ("target_layer_ids", "target_hidden_layer_ids")  # whose convention isn't known

_KNOWN = {  # why a field isn't refused: its names
    "read": """architectures draft_vocab_size eagle_aux_hidden_state_layer_ids eagle_config
        efficient_lm_head_config fledge head_dim hidden_size intermediate_size layer_types max_position_embeddings
        num_attention_heads num_aux_hidden_states num_hidden_layers num_key_value_heads
        original_max_position_embeddings partial_rotary_factor rms_norm_eps rope_parameters rope_scaling rope_theta
        sliding_window sliding_window_sinks speculators_config speculators_model_type target_hidden_size use_aux_norm
        use_sliding_window vocab_size""",
    "names, versions and types": """adapters auto_map base_model base_model_name_or_path draft_model_type dtype
        modal_type model_type name problem_type speculators_version target_model target_model_name_or_path
        target_model_path target_model_type tokenizer_class torch_dtype transformers_version truncated_vocab_size
        verifier_name_or_path version""",
    "token ids": """audio_token_id bad_words_ids begin_suppress_tokens bos_token_id decoder_start_token_id eos_token_id
        forced_bos_token_id forced_eos_token_id image_token_id image_token_index pad_token_id sep_token_id
        suppress_tokens video_token_id vision_end_token_id vision_start_token_id vision_token_id""",
    "training": """attention_dropout aux_loss_alpha classifier_dropout embd_pdrop embed_requires_grad embedding_dropout
        ep_size hidden_dropout initializer_factor initializer_range mlp_dropout output_router_logits resid_dropout
        resid_pdrop router_aux_loss_coef router_jitter_noise router_z_loss_coef seq_aux ttt_length ttt_steps""",
    "serving and generation": """attn_implementation cache_implementation diversity_penalty do_sample early_stopping
        encoder_no_repeat_ngram_size exponential_decay_length_penalty length_penalty max_length min_length
        model_max_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions
        output_hidden_states output_scores pretraining_tp repetition_penalty return_dict return_dict_in_generate
        temperature top_k top_p typical_p use_cache""",
    "bookkeeping of transformers": """add_cross_attention chunk_size_feed_forward cross_attention_hidden_size
        finetuning_task has_no_defaults_at_init id2label is_decoder is_encoder_decoder label2id prefix pruned_heads
        remove_invalid_values task_specific_params tf_legacy_loss tie_encoder_decoder torchscript use_bfloat16""",
    # Of the target, often left in. Tensors show whether a head has experts, latent attention, or its own lm_head.
    "shown by tensors": """decoder_sparse_step first_k_dense_replace has_lm_head kv_lora_rank max_window_layers
        mlp_only_layers moe_intermediate_size moe_layer_freq n_group n_routed_experts n_shared_experts norm_topk_prob
        num_experts num_experts_per_tok num_local_experts num_nextn_predict_layers q_lora_rank qk_nope_head_dim
        qk_rope_head_dim routed_scaling_factor scoring_func tie_word_embeddings topk_group topk_method v_head_dim""",
}
_KNOWN_NAMES = frozenset(name for names in _KNOWN.values() for name in names.split()).union(SWITCHES)
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # besides null, false, 0 and empty ones
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function"), ("silu", "swish")),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier"), (1,)),
    **dict.fromkeys(("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier"), (1,)),
    **dict.fromkeys(("rotary_pct", "rope_pct", "rotary_percent"), (1,)),
    "position_embedding_type": ("rope",),
    "eagle_decoder_type": ("llama",),
    "num_eagle_features": (3,),
    "parallel_draft_step": (1,),
}
_EAGLE_READ = frozenset({LAYER_IDS, "num_aux_hidden_states"})
_EAGLE_HARMLESS = frozenset(("next_layer_regular", "has_lm_head", "parallel_draft_heads_num_layers"))
_SWITCHED_ON = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm")

_ROPE_READ: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset(("factor",)),
    "llama3": frozenset(("factor", "low_freq_factor", "high_freq_factor")),
    "yarn": frozenset(
        ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")
    ),
}
# Three axes of position, which on text are one.
_ROPE_HARMLESS = frozenset(("mrope_section", "mrope_interleaved"))
_ROPE_ALWAYS = _ROPE_HARMLESS | {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
}


def unsupported_fields(flat: Mapping[str, Any]) -> list[str]:
    """The fields of a head's config, in one flat mapping, that fledge's heads don't compute; each with its value."""
    return [f"{name}={json.dumps(value):.60}" for name, value in _unsupported(flat)]


def _unsupported(flat: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    architectures = flat.get("architectures") or []
    if any(_other_drafter(str(name)) for name in architectures):
        yield "architectures", architectures
    if (layers := flat.get("num_hidden_layers")) not in (None, 1):
        yield "num_hidden_layers", layers
    yield from _windows(flat)
    ids = flat.get(LAYER_IDS) or (flat.get("eagle_config") or {}).get(LAYER_IDS)
    for name, value in flat.items():
        if name in _SWITCHED_ON:
            if value is False:
                yield name, value
        elif name in OTHER_LAYER_IDS and value == ids:
            continue  # the same ids once more
        elif not (name in _KNOWN_NAMES or name.startswith("_") or _neutral(name, value)):
            yield name, value
    for name, value in (flat.get("eagle_config") or {}).items():
        if name in _SWITCHED_ON:
            if value is False:
                yield f"eagle_config.{name}", value
        elif not (name in _EAGLE_READ or name in _EAGLE_HARMLESS or _neutral(name, value)):
            yield f"eagle_config.{name}", value
    for name, value in (flat.get("speculators_config") or {}).items():
        known = name in (
            "default_proposal_method",
            "proposal_methods",
            "verifier",
        )  # how it is served, and the target
        if not (known or _neutral(name, value) or (name == "algorithm" and value == "eagle3")):
            yield f"speculators_config.{name}", value
    yield from _rope(flat)


def _neutral(name: str, value: Any) -> bool:
    """True if the value leaves the feature off."""
    return value in (None, False, "", [], {}) or value in _NEUTRAL.get(name, ())


def _other_drafter(architecture: str) -> bool:
    """True for the class of another drafter, such as P-EAGLE; many EAGLE-3 heads name Llama's."""
    name = architecture.lower()
    if architecture == EAGLE4:
        return False
    if "eagle3" in name:
        return "deepseek" in name  # latent attention
    return any(kind in name for kind in ("eagle", "dflash", "dspark", "medusa", "mtp", "draft"))


def window_fields(flat: Mapping[str, Any]) -> tuple[int, int]:
    """Window and sinks of `HeadConfig`, from a config that `unsupported_fields` finds nothing in."""
    if WINDOW_SINKS not in flat:
        return 0, 0
    return flat[WINDOW], flat[WINDOW_SINKS]


def _windows(flat: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields that limit the layer to a window of the context: its kind, or a window that isn't switched off.

    A window of fledge's says how many first tokens are seen besides. Another's may count drafted tokens, too.
    """
    if WINDOW_SINKS in flat:
        window, sinks = flat.get(WINDOW), flat[WINDOW_SINKS]
        if type(window) is not int or window < 1:
            yield WINDOW, window
        if type(sinks) is not int or sinks not in (0, SINKS):
            yield WINDOW_SINKS, sinks
        return
    kinds, window = flat.get("layer_types"), flat.get("sliding_window")
    if kinds:
        if kinds[0] != "full_attention":
            yield "layer_types", kinds
        return
    switch, positions = flat.get("use_sliding_window"), flat.get("max_position_embeddings") or 0
    if switch and "sliding_window" not in flat:
        yield "use_sliding_window", switch  # the class has a window by default
    if switch is not False and window and window < positions:
        yield "sliding_window", window


def _rope(flat: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    place = "rope_scaling" if flat.get("rope_scaling") else "rope_parameters"
    kind, parameters = rope_parameters(flat)
    if (share := rotary_share(flat)) != 1.0:
        yield "partial_rotary_factor", share
    if kind not in _ROPE_READ:
        yield f"{place}.rope_type", kind
        return
    for name, value in parameters.items():
        known = name in _ROPE_READ[kind] or name in _ROPE_ALWAYS
        if not known and not _neutral(name, value) and not (name in ("factor", "attn_factor") and value == 1):
            yield f"{place}.{name}", value
