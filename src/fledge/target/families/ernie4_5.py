"""ERNIE 4.5, the dense models: Llama with a RoPE that rotates neighbouring dimensions, in GGUF files too.

`use_bias` gives every projection a bias, which the decoder doesn't have: it is refused.
"""

from fledge.target.families.family import Family, Gguf

FAMILY = Family(
    ("Ernie4_5ForCausalLM",),
    defaults=None,
    windowed_layers=lambda raw: (),
    interleaved_rope=True,
    gguf=Gguf({"ernie4_5": "ernie4_5"}),
)
