"""Seed-OSS: Llama with biases of q, k and v, and of attention's output where the config says so."""

from fledge.sources.gguf_header import GgufHeader
from fledge.target.families.family import Family, Fields, Gguf


def _fields(raw: Fields) -> Fields:
    return {
        "qkv_bias": bool(raw.get("attention_bias", True)),
        "o_bias": bool(raw.get("attention_out_bias", False)),
    }


def _gguf_fields(header: GgufHeader, config: Fields) -> Fields:
    return {"attention_bias": "blk.0.attn_q.bias" in header.tensors}


FAMILY = Family(
    ("SeedOssForCausalLM",),
    defaults=None,
    fields=_fields,
    windowed_layers=lambda raw: (),
    understood=("attention_bias",),
    gguf=Gguf({"seed_oss": "seed_oss"}, _gguf_fields),
)
