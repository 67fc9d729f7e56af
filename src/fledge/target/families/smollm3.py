"""SmolLM3: Llama with layers without RoPE."""

from fledge.target.families.family import Family, enabled_windows
from fledge.target.families.llama4 import rope_free_layers

FAMILY = Family(
    ("SmolLM3ForCausalLM",),
    defaults=None,
    fields=lambda raw: {"rope_free_layers": rope_free_layers(raw)},
    windowed_layers=enabled_windows,
    understood=("no_rope_layers",),
)
