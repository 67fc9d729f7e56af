"""What figures were measured on: processor, memory bandwidth, versions."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from importlib import metadata, resources
from pathlib import Path

import torch
from pydantic import BaseModel

from fledge.base.memory import system_memory
from fledge.engine.flight import seconds_of
from fledge.engine.memory import free_memory
from fledge.native import cpu_flags

# What determines the speed of matrix products here, in display order.
_TELLING_FLAGS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8"),
)
_COMPILERS = ("cc", "gcc", "clang")
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
    method: str  # avx512, avx2 or plain (compiled C); torch on a GPU or without a compiler
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
        flags=[flag for flag in _TELLING_FLAGS if flag in cpu_flags()],
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

    On a CPU a small C program does it, since reductions in torch or numpy read far slower than the memory allows.
    """
    cpu = device.type == "cpu"
    free = free_memory(device)
    least = _MIN_BYTES if cpu else _MIN_GPU_BYTES
    size = max(_MIN_BYTES, min(max(buffer_bytes, least), _MAX_BYTES, free // 4))
    if not cpu:
        return _torch_bandwidth(size, device, seconds)
    threads = available_cores()
    try:
        return _compiled_bandwidth(size, threads, seconds)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        bandwidth = _torch_bandwidth(size, device, seconds)
        reason = " ".join(str(error).split())
        return bandwidth.model_copy(
            update={"note": f"torch reduction, which under-reports the bandwidth: {reason}"}
        )


def best_of(measured: list[Bandwidth]) -> Bandwidth | None:
    """The measurement with the best pass."""
    return max(measured, key=lambda one: one.best_gb_s, default=None)


def _compiled_bandwidth(size: int, threads: int, seconds: float) -> Bandwidth:
    names = (os.environ["CC"],) if os.environ.get("CC") else _COMPILERS
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise ValueError("no C compiler found (install gcc or clang)")
    source = (resources.files("fledge.bench") / "bandwidth.c").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="fledge-") as folder:
        path, program = Path(folder) / "bandwidth.c", Path(folder) / "bandwidth"
        path.write_text(source, encoding="utf-8")
        _compile(compiler, path, program)
        command = [str(program), str(threads), str(size), str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60 + 10 * seconds)
    value = json.loads(done.stdout)
    return Bandwidth(
        best_gb_s=value["best"] / 1e9,
        median_gb_s=value["median"] / 1e9,
        threads=threads,
        buffer_bytes=size,
        method=value["kernel"],
    )


def _compile(compiler: str, source: Path, program: Path) -> None:
    """Compile for this processor; some compilers don't support `-march=native`."""
    error = "the C compiler failed"
    for options in (["-march=native"], []):
        command = [compiler, "-O3", *options, "-pthread", str(source), "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode == 0:
            return
        error = f"{compiler} failed: {done.stderr.strip()[-200:]}"
    raise ValueError(error)


def _torch_bandwidth(size: int, device: torch.device, seconds: float) -> Bandwidth:
    buffer = torch.ones(size // 8, dtype=torch.int64, device=device)
    seconds_of(buffer.sum, device)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < seconds:
        times.append(seconds_of(buffer.sum, device))
    times.sort()
    return Bandwidth(
        best_gb_s=buffer.nbytes / times[0] / 1e9,
        median_gb_s=buffer.nbytes / times[len(times) // 2] / 1e9,
        threads=torch.get_num_threads(),
        buffer_bytes=buffer.nbytes,
        method="torch",
    )


def _cpu_model() -> str:
    """The processor's name; "" if the system doesn't report it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = (line for line in text.splitlines() if line.startswith(("model name", "Model")))
    return next(lines, "").partition(":")[2].strip()
