"""Which machine this is, and how fast it copies."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from tests.gpu.record import Check


def device(check: Check) -> None:
    """Versions, the card, bytes per second of a device copy and of pinned copies from and to the host."""

    def machine() -> dict[str, Any]:
        found: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cores": len(os.sched_getaffinity(0)),
        }
        for package in ("triton", "transformers"):
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = None
        if check.gpu:
            card = torch.cuda.get_device_properties(0)
            found |= {
                "card": card.name,
                "gib": round(card.total_memory / 2**30, 1),
                "devices": torch.cuda.device_count(),
            }
        return found

    def copies() -> dict[str, Any]:
        count = 1 << (20 if check.small else 30)
        source = torch.empty(count, dtype=torch.uint8, device=check.device)
        there = torch.empty_like(source)
        host = torch.empty(count // 16, dtype=torch.uint8, pin_memory=check.gpu)
        part = source[: count // 16]
        speeds = {
            "device": 2 * count / check.ms(lambda: there.copy_(source)),
            "to_device": len(host) / check.ms(lambda: part.copy_(host, non_blocking=True), times=5),
            "to_host": len(host) / check.ms(lambda: host.copy_(part, non_blocking=True), times=5),
        }
        return {f"{name}_gb_s": round(value / 1e6, 1) for name, value in speeds.items()}

    check.case("machine", machine)
    check.case("copies", copies)
