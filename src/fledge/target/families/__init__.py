"""Target families: a file for each, which holds all that is particular to an architecture, and the registry.

The decoder, and all that reads config.json and weights, is written for Llama; a `Family` says where an architecture
differs. docs/extend.md adds one.
"""

from __future__ import annotations

from importlib import import_module

from fledge.target.families.family import Family, Gguf
from fledge.target.families.undecoded import undecoded

__all__ = ["SUPPORTED_ARCHITECTURES", "Family", "Gguf", "find", "find_gguf", "register"]

_FILES = (
    "cwm",
    "ernie4_5",
    "granite",
    "helium",
    "llama",
    "llama4",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma3",
    "gpt_oss",
    "seed_oss",
    "smollm3",
)
_FAMILIES: dict[str, Family] = {}
SUPPORTED_ARCHITECTURES = _FAMILIES.keys()  # with those registered later


def register(*families: Family) -> None:
    """Make fledge know these in this process; an architecture that is known already is replaced."""
    _FAMILIES.update({name: family for family in families for name in family.architectures})
    _FAMILIES.update({name: family for family in families for name in family.text_models})


def find(architecture: str) -> Family:
    """The family of an architecture; for one that isn't registered, a family without architectures."""
    return _FAMILIES.get(architecture) or undecoded(architecture)


def find_gguf(name: str) -> Family | None:
    """The family whose architecture has that name in GGUF files; None if files of it aren't read."""
    families = (family for family in _FAMILIES.values() if family.gguf and name in family.gguf.model_types)
    return next(families, None)


register(*(import_module(f"{__name__}.{name}").FAMILY for name in _FILES))
