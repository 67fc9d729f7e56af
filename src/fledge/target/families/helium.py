"""Helium: Llama with a RoPE that rotates neighbouring dimensions."""

from fledge.target.families.family import Family

FAMILY = Family(
    ("HeliumForCausalLM",),
    defaults=None,
    fields=lambda raw: {"qkv_bias": bool(raw.get("attention_bias"))},
    windowed_layers=lambda raw: (),
    understood=("attention_bias",),
    interleaved_rope=True,
)
