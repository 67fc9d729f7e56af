"""GPT-OSS: sinks, biases in attention, and experts with clamped gates, in bfloat16 or MXFP4."""

import torch
from torch import Tensor

from fledge.target.experts import ExpertsConfig, ExpertWeights, expert_counts
from fledge.target.families.family import Family, Fields
from fledge.target.tensors import TensorSource


def _fields(raw: Fields) -> Fields:
    layers = tuple(range(int(raw["num_hidden_layers"])))
    biased, size = bool(raw.get("attention_bias", True)), raw["intermediate_size"]
    clamp, slope = float(raw.get("swiglu_limit") or 7.0), float(raw.get("swiglu_alpha") or 1.702)
    experts = ExpertsConfig(*expert_counts(raw), size, "renormalised", 0, layers, 0, clamp, slope)
    return {"qkv_bias": biased, "o_bias": biased, "sinks": True, "experts": experts}


def _read_experts(source: TensorSource, place: str, experts: ExpertsConfig, hidden: int) -> ExpertWeights:
    """All experts in one tensor: in MXFP4, or with the outputs as its columns. Each gate has its `up` beside it."""
    count, inner = experts.count, experts.intermediate_size

    def read_matrices(name: str, outputs: int, inputs: int) -> Tensor:
        if f"{place}.experts.{name}_blocks" in source:
            return source.read_mxfp4(f"{place}.experts.{name}", count, outputs, inputs)
        return source.read(f"{place}.experts.{name}", count, inputs, outputs).mT

    def gates_first(pairs: Tensor) -> Tensor:  # [E, 2 * I, ...]
        return torch.cat((pairs[:, 0::2], pairs[:, 1::2]), dim=1)

    return ExpertWeights(
        router=source.read(f"{place}.router.weight", count, hidden),
        gate_up=gates_first(read_matrices("gate_up_proj", 2 * inner, hidden)),
        down=read_matrices("down_proj", hidden, inner).contiguous(),
        router_bias=source.read(f"{place}.router.bias", count),
        gate_up_bias=gates_first(source.read(f"{place}.experts.gate_up_proj_bias", count, 2 * inner)),
        down_bias=source.read(f"{place}.experts.down_proj_bias", count, hidden),
    )


FAMILY = Family(
    ("GptOssForCausalLM",),
    defaults=None,
    fields=_fields,
    quantisations=("mxfp4",),
    understood=("attention_bias", "swiglu_limit"),
    read_experts=_read_experts,
)
