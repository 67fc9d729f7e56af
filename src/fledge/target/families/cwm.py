"""CWM (arXiv 2510.02387): Llama with sliding windows in three of four layers, all with the same RoPE."""

from fledge.target.families.family import Family

FAMILY = Family(("CwmForCausalLM",), defaults=None)
