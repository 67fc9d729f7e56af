"""SmolLM3: Llama with layers without RoPE."""

from fledge.target.families.family import Family, Gguf, enabled_windows
from fledge.target.families.llama4 import rope_free_layers

FAMILY = Family(
    ("SmolLM3ForCausalLM",),
    defaults=None,
    fields=lambda raw: {"rope_free_layers": rope_free_layers(raw)},
    windowed_layers=enabled_windows,
    understood=("no_rope_layers",),
    gguf=Gguf({"smollm3": "smollm3"}, lambda header, config: {"no_rope_layer_interval": 4}, interleaved=True),
)
