"""Qwen3, and Qwen3-VL given text alone: Llama with norms of q and k."""

from fledge.target.families import qwen2
from fledge.target.families.family import Family, Gguf

FAMILY = Family(
    ("Qwen3ForCausalLM",),
    text_models={"Qwen3VLForConditionalGeneration": "qwen3_vl_text"},
    defaults=qwen2.DEFAULTS,
    fields=lambda raw: {"qk_norm": True},
    windowed_layers=qwen2.late_windows,
    understood=("qk_norm", "use_qk_norm"),
    gguf=Gguf({"qwen3": "qwen3", "qwen3vl": "qwen3"}),
)
