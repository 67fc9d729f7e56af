"""The machine that figures were measured on: processor, memory bandwidth, versions."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch
from pydantic import BaseModel

from fledge.base.memory import system_memory
from fledge.engine.flight import seconds_of
from fledge.engine.memory import free_memory
from fledge.native import cpu_flags, ops, unavailable_reason
from fledge.native.build import default_threads

# CPU features that determine the speed of matrix products, in display order.
_KERNEL_FLAGS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8"),
)
_MIN_BYTES = 64 << 20
_MIN_GPU_BYTES = 1 << 30  # large relative to a launch's microseconds and to its cache
_MAX_BYTES = 4 << 30
_CPU = torch.device("cpu")


class Machine(BaseModel):
    """The machine, as described in reports."""

    cpu: str
    cores: int
    threads: int  # threads torch uses
    memory_gib: float
    flags: list[str]
    system: str
    accelerator: str | None = None


class Bandwidth(BaseModel):
    """Raw multi-threaded read bandwidth. The limit of plain decode uses the best pass."""

    best_gb_s: float
    median_gb_s: float
    threads: int
    buffer_bytes: int
    method: str  # kernels (the compiled ones), or torch
    note: str = ""


def machine_facts(device: torch.device | None = None) -> Machine:
    """This machine. `device` names the accelerator, if it is one; None: a server's, which may use any.

    A processor without a name is `unknown`.
    """
    has_accelerator = torch.cuda.is_available() if device is None else device.type == "cuda"
    return Machine(
        cpu=_cpu_model() or platform.processor() or "unknown",
        cores=available_cores(),
        threads=torch.get_num_threads(),
        memory_gib=round(system_memory("MemTotal") / 2**30, 1),
        flags=[flag for flag in _KERNEL_FLAGS if flag in cpu_flags()],
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        accelerator=torch.cuda.get_device_name(device) if has_accelerator else None,
    )


def versions() -> dict[str, str]:
    """Versions of everything that affects the figures."""
    versions = {"python": platform.python_version()}
    for package in ("fledge", "torch", "transformers", "tokenizers", "safetensors", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def available_cores() -> int:
    """Cores this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def measure_bandwidth(buffer_bytes: int, device: torch.device = _CPU, seconds: float = 1.5) -> Bandwidth:
    """Read a buffer about the size of the weights with the whole device, repeatedly for `seconds`.

    On a CPU the kernels do it, since reductions in torch or numpy read far slower than the memory allows.
    """
    cpu = device.type == "cpu"
    least = _MIN_BYTES if cpu else _MIN_GPU_BYTES
    size = max(_MIN_BYTES, min(max(buffer_bytes, least), _MAX_BYTES, free_memory(device) // 4))
    reason = unavailable_reason() if cpu else ""
    if cpu and not reason:
        buffer = ops.pages_of_zeros(size // 8, dtype=torch.int64).fill_(1)
        return _bandwidth(buffer, lambda: ops.read(buffer), seconds, default_threads(), "kernels")
    buffer = torch.ones(size // 8, dtype=torch.int64, device=device)
    note = f"torch reduction, which under-reports the bandwidth: {reason}" if reason else ""
    return _bandwidth(buffer, buffer.sum, seconds, torch.get_num_threads(), "torch", note)


def best_of(measured: list[Bandwidth]) -> Bandwidth | None:
    """The measurement with the best pass."""
    return max(measured, key=lambda one: one.best_gb_s, default=None)


def _bandwidth(
    buffer: torch.Tensor,
    read: Callable[[], object],
    seconds: float,
    threads: int,
    method: str,
    note: str = "",
) -> Bandwidth:
    seconds_of(read, buffer.device)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < seconds:
        times.append(seconds_of(read, buffer.device))
    times.sort()
    return Bandwidth(
        best_gb_s=buffer.nbytes / times[0] / 1e9,
        median_gb_s=buffer.nbytes / times[len(times) // 2] / 1e9,
        threads=threads,
        buffer_bytes=buffer.nbytes,
        method=method,
        note=note,
    )


def _cpu_model() -> str:
    """The processor's name; "" if the system doesn't report it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = (line for line in text.splitlines() if line.startswith(("model name", "Model")))
    return next(lines, "").partition(":")[2].strip()
