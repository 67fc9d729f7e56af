"""Memory limit of the KV pool."""

from __future__ import annotations

from pathlib import Path

import torch

from fledge.base.device import shared
from fledge.base.memory import system_memory
from fledge.native.cgroup import own_groups
from fledge.target.config import DecoderConfig

# Of what is free, for the KV of target and head together: a host's memory is others', too, a GPU's is the engine's.
_HOST_SHARE, _GPU_SHARE = 0.25, 0.9
# Bytes of a recorded round besides its tensors: an estimate, not measured yet.
_GRAPH_BYTES = 8 << 20
_LOGIT_COPIES = 4  # float32: logits, what is made of them, and two temporaries


def memory_for_kv(device: torch.device, activations: int = 0) -> int:
    """Bytes: a share of the device's free memory, measured now, with the weights loaded.

    Of a GPU's, `activations` are taken off first.
    """
    free = free_memory(device)
    return int(free * _HOST_SHARE) if shared(device) else int(max(free - activations, 0) * _GPU_SHARE)


def activation_bytes(config: DecoderConfig, rows: int, logit_rows: int, itemsize: int) -> int:
    """Approximate bytes of a forward over `rows` rows, besides weights and KV; `logit_rows` of them choose a token.

    Where a layer has experts, their rows are counted as a dense layer's.
    """
    attention = (
        3 * config.qkv_size + 2 * config.num_heads * config.head_dim
    )  # with the rotated ones in float32
    row = 8 * config.hidden_size + 3 * config.intermediate_size + attention  # residual, features, MLP
    return rows * row * itemsize + logit_rows * config.vocab_size * 4 * _LOGIT_COPIES


def graph_bytes(config: DecoderConfig, rows: int, recordings: int, itemsize: int) -> int:
    """Approximate bytes of recorded rounds; the largest has `rows` rows. They share the tensors' memory."""
    return activation_bytes(config, rows, rows, itemsize) + recordings * _GRAPH_BYTES


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on the device now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what loading the weights has left
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [container_limit(folder) for folder in own_groups()]
    return min([system_memory("MemAvailable"), *(limit for limit in limits if limit is not None)])


def container_limit(folder: Path) -> int | None:
    """Bytes that the processes of a cgroup (v2) may still use; None without a limit.

    Files the kernel has cached count as used there, but are given up when memory is short.
    """
    try:
        limit = (folder / "memory.max").read_text("utf-8").strip()
        if limit == "max":
            return None
        used = int((folder / "memory.current").read_text("utf-8"))
        lines = (folder / "memory.stat").read_text("utf-8").splitlines()
    except OSError:  # no container, or another system
        return None
    cached = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    return max(int(limit) - used + cached, 0)
