"""Architectures that the decoder doesn't know: heads can be trained for them on features made elsewhere."""

from __future__ import annotations

from fledge.target.families import gemma3, llama4, qwen3, smollm3
from fledge.target.families.family import Family

# Architectures whose norms multiply by 1 + weight.
_ADD_ONE = ("GemmaFor", "Gemma2For", "Gemma3For", "MiniMaxM3", "Qwen3Next", "Qwen3_5", "Qwen4Exp", "Step3p7")
# A known family's fields also count in the revisions of architectures whose names begin like its own.
_RELATIVES = {"Gemma3": gemma3, "Llama4": llama4, "Qwen3": qwen3, "SmolLM3": smollm3}


def undecoded(architecture: str) -> Family:
    """Family for reading the embedding, last norm and lm_head of an undecoded architecture, and for its revision."""
    relatives = [module.FAMILY for start, module in _RELATIVES.items() if architecture.startswith(start)]
    return Family(
        (),
        defaults=None,
        fields=relatives[0].fields if relatives else Family.fields,
        windowed_layers=lambda raw: (),
        norm_adds_one=architecture.startswith(_ADD_ONE),
    )
