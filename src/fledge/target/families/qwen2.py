"""Qwen2, and Qwen2-VL and Qwen2.5-VL given text alone: Llama with biases of q, k and v."""

from collections.abc import Sequence

from fledge.target.families.family import Family, Fields, Gguf, enabled_windows

DEFAULTS = {"max_position_embeddings": 32768, "sliding_window": 4096}


def late_windows(raw: Fields) -> Sequence[int]:
    """Layers from `max_window_layers` on, where no `layer_types` says otherwise."""
    first = 0 if raw.get("layer_types") else int(raw.get("max_window_layers", 28))
    return [layer for layer in enabled_windows(raw) if layer >= first]


FAMILY = Family(
    ("Qwen2ForCausalLM",),
    text_models={
        "Qwen2VLForConditionalGeneration": "qwen2_vl_text",
        "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl_text",
    },
    defaults=DEFAULTS,
    fields=lambda raw: {"qkv_bias": True},
    windowed_layers=late_windows,
    understood=("attention_bias", "qkv_bias"),
    gguf=Gguf({"qwen2": "qwen2", "qwen2vl": "qwen2"}),
)
