"""The machine that figures were measured on: processor, memory bandwidth, versions."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median

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
_TURNS, _READS = 3, 3  # turns at least, and reads of each
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
    """Raw multi-threaded read bandwidth, measured in turn with plain decode."""

    best_gb_s: float
    median_gb_s: float
    threads: int
    buffer_bytes: int
    method: str  # kernels (the compiled ones), or torch
    note: str = ""
    # Time to read as many bytes as a plain step does over that of the step: the median over neighbouring pairs.
    plain_share: float | None = None


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


def measure_bandwidth(
    step_bytes: int, step: Callable[[], float], device: torch.device = _CPU, seconds: float = 3.0
) -> Bandwidth:
    """Read a buffer about the size of the weights with the whole device, in turn with plain steps, for `seconds`.

    A shared machine's memory gets twice as fast or slow within seconds, so a step compares with the reads beside it.
    On a CPU the kernels read, since reductions in torch or numpy are far slower than the memory allows.

    Args:
        step_bytes: the bytes of weights that a step reads.
        step: decodes plainly, and returns the seconds of a step.
    """
    cpu = device.type == "cpu"
    least = _MIN_BYTES if cpu else _MIN_GPU_BYTES
    size = max(_MIN_BYTES, min(max(step_bytes, least), _MAX_BYTES, free_memory(device) // 4))
    reason = unavailable_reason() if cpu else ""
    if cpu and not reason:
        buffer = ops.pages_of_zeros(size // 8, dtype=torch.int64).fill_(1)
        read: Callable[[], object] = partial(ops.read, buffer)
        threads, method = default_threads(), "kernels"
    else:
        buffer = torch.ones(size // 8, dtype=torch.int64, device=device)
        read, threads, method = buffer.sum, torch.get_num_threads(), "torch"
    times, shares = _in_turn(read, step, device, seconds)
    return Bandwidth(
        best_gb_s=buffer.nbytes / min(times) / 1e9,
        median_gb_s=buffer.nbytes / median(times) / 1e9,
        threads=threads,
        buffer_bytes=buffer.nbytes,
        method=method,
        note=f"torch reduction, which under-reports the bandwidth: {reason}" if reason else "",
        plain_share=median(shares) * step_bytes / buffer.nbytes,
    )


def _in_turn(
    read: Callable[[], object], step: Callable[[], float], device: torch.device, seconds: float
) -> tuple[list[float], list[float]]:
    """Seconds of reads, and of each few of them the fastest over the step beside them; the first turn isn't counted."""
    seconds_of(read, device)
    step()
    times: list[float] = []
    shares: list[float] = []
    end = time.perf_counter() + seconds
    while len(shares) < _TURNS or time.perf_counter() < end:
        beside = [seconds_of(read, device) for _ in range(_READS)]
        times += beside
        shares.append(min(beside) / step())
    return times, shares


def _cpu_model() -> str:
    """The processor's name; "" if the system doesn't report it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = (line for line in text.splitlines() if line.startswith(("model name", "Model")))
    return next(lines, "").partition(":")[2].strip()
