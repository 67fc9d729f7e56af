"""Mixtures of experts in plain torch: how a token is routed, and what its experts make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Routing = Literal["softmax", "renormalised", "sigmoid"]


@dataclass(frozen=True)
class ExpertsConfig:
    """A target's mixtures of experts.

    Routing "softmax" weighs the chosen experts' outputs with their probabilities among all experts (Qwen3-MoE with
    norm_topk_prob=false), "renormalised" among the chosen (Mixtral, arXiv 2401.04088), and "sigmoid" multiplies each
    expert's input by the sigmoid of its score (Llama 4). GPT-OSS' softmax over the chosen experts' scores is
    "renormalised", too.
    """

    count: int
    per_token: int
    intermediate_size: int  # of one expert
    routing: Routing
    shared_size: int  # of the expert that every token passes; 0: there is none
    layers: tuple[int, ...]  # those with experts; the others have a dense MLP
    dense_size: int  # of those
    clamp: float = 0.0  # GPT-OSS: no gate is above it, no `up` further from 0; 0: SiLU, without bounds
    gate_slope: float = 1.702  # GPT-OSS: a gate g becomes g * sigmoid(gate_slope * g), and `up` up + 1


def expert_counts(raw: Mapping[str, Any]) -> tuple[int, int]:
    """Number of experts in an HF configuration, and number of them that each token uses."""
    count = raw["num_local_experts"] if "num_local_experts" in raw else raw["num_experts"]
    return int(count), int(raw["num_experts_per_tok"])


@dataclass(frozen=True)
class ExpertWeights:
    """The routed experts of one layer. E experts, H hidden, I an expert's intermediate size."""

    router: Tensor  # [E, H]
    gate_up: Tensor  # [E, 2 * I, H], gate rows first
    down: Tensor  # [E, H, I]
    router_bias: Tensor | None = None  # [E]
    gate_up_bias: Tensor | None = None  # [E, 2 * I]
    down_bias: Tensor | None = None  # [E, H]


def mix_experts(x: Tensor, w: ExpertWeights, config: ExpertsConfig) -> Tensor:
    """Rows x [R, H] through the experts each of them chooses, summed, [R, H].

    Rows are sorted by expert, so that each expert is one matrix product over its rows. In bf16 nothing waits for the
    device, and the call can be captured in a CUDA graph; other dtypes ask once per layer how many rows each got.
    """
    scores = F.linear(x, w.router, w.router_bias).float()  # [R, E]
    if config.routing == "sigmoid":
        values, chosen = scores.topk(config.per_token)
        weights = values.sigmoid()
    else:
        weights, chosen = scores.softmax(dim=-1).topk(config.per_token)
        if config.routing == "renormalised":
            weights = weights / weights.sum(dim=-1, keepdim=True)
    weights = weights.to(x.dtype).flatten().unsqueeze(1)  # [R * K, 1]
    order = chosen.flatten().argsort(stable=True)
    sorted_experts = chosen.flatten()[order]
    ends = torch.searchsorted(sorted_experts, torch.arange(config.count, device=x.device), right=True)
    rows = x.index_select(0, order // config.per_token)  # [R * K, H]
    if config.routing == "sigmoid":
        rows = rows * weights[order]

    def through(rows: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        out = _each_expert(rows, weights, ends)
        return out if bias is None else out + bias[sorted_experts]

    inside = _activated(through(rows, w.gate_up, w.gate_up_bias), config)
    mixed = torch.empty_like(rows)
    mixed[order] = through(inside, w.down, w.down_bias)
    if config.routing != "sigmoid":
        mixed = mixed * weights
    return mixed.view(-1, config.per_token, x.shape[1]).sum(dim=1)


def waits(config: ExpertsConfig, hidden_size: int, dtype: torch.dtype) -> bool:
    """True if `mix_experts` reads on the host how many rows each expert got."""
    return not _one_product(dtype, hidden_size, 2 * config.intermediate_size, config.intermediate_size)


def _one_product(dtype: torch.dtype, *sizes: int) -> bool:
    """True if torch has one call for all experts' products: since torch 2.10, for rows of whole 16 bytes."""
    return dtype == torch.bfloat16 and hasattr(F, "grouped_mm") and not any(size % 8 for size in sizes)


def _activated(gate_up: Tensor, config: ExpertsConfig) -> Tensor:
    """[N, 2 * I], gates first -> [N, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    if not config.clamp:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=config.clamp), up.clamp(-config.clamp, config.clamp)
    return (up + 1) * gate * torch.sigmoid(config.gate_slope * gate)


def _each_expert(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows [N, in], sorted by expert, times that expert's matrix [E, out, in]; `ends` [E]: where its rows end."""
    if _one_product(rows.dtype, *weights.shape[1:]):
        return F.grouped_mm(rows, weights.transpose(1, 2), offs=ends.int())
    out, start = rows.new_empty(rows.shape[0], weights.shape[1]), 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            out[start:end] = F.linear(rows[start:end], weights[expert])
        start = end
    return out
