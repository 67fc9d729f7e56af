"""How much memory the KV pool may take."""

from __future__ import annotations

from pathlib import Path

import torch

from fledge.base.memory import system_memory
from fledge.native.cgroup import own_groups

_SHARE = 0.25  # of what is free now, for the KV of target and head together


def memory_for_kv(device: torch.device) -> int:
    """Bytes: a share of the device's free memory, measured now, with the weights loaded."""
    return int(free_memory(device) * _SHARE)


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on the device now."""
    if device.type == "cuda":
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
