"""Finding, building and loading the CPU kernels.

Wheels bring them along. Without those they are compiled once per machine with the system's C++ compiler, then cached.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from fledge.base import disk
from fledge.base.errors import EngineError
from fledge.native import abi
from fledge.native.cgroup import own_groups
from fledge.native.instruction_sets import (
    FLAGS,
    INSTRUCTION_SETS,
    compiler_command,
    find_compiler,
    named,
)

logger = logging.getLogger("fledge.note")

# In a wheel that was built where there was a compiler; see hatch_build.py.
PREBUILT = Path(__file__).parent / "prebuilt"


def cache_folder() -> Path:
    """Where compiled kernels and converted targets are kept: $FLEDGE_CACHE or ~/.cache/fledge."""
    return Path(os.environ.get("FLEDGE_CACHE") or Path.home() / ".cache" / "fledge")


def default_threads() -> int:
    """$FLEDGE_THREADS, or the cores this process may use. Raises EngineError if it isn't a number of threads."""
    wanted = os.environ.get("FLEDGE_THREADS")
    if wanted:
        if not wanted.isdecimal() or not 1 <= int(wanted) <= abi.MOST_THREADS:
            raise EngineError(
                f"FLEDGE_THREADS is {wanted!r}; use a number of threads, 1 to {abi.MOST_THREADS}"
            )
        return int(wanted)
    cores = len(os.sched_getaffinity(0))
    limits = [container_cores(folder) for folder in own_groups()]
    return min([cores, abi.MOST_THREADS, *(limit for limit in limits if limit is not None)])


def container_cores(folder: Path) -> int | None:
    """CPU limit of a cgroup (v2), in whole cores; None without a limit."""
    try:
        quota, period = (folder / "cpu.max").read_text("utf-8").split()
    except OSError:  # no container, or another system
        return None
    return None if quota == "max" else max(int(quota) // int(period), 1)


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The processor's feature flags, as Linux names them (empty elsewhere)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
    return frozenset(lines[0].split(":", 1)[1].split()) if lines else frozenset()


def native_setting() -> str:
    """$FLEDGE_NATIVE: 1 or 0 (no kernels). Raises EngineError for anything else."""
    setting = os.environ.get("FLEDGE_NATIVE") or "1"
    if setting not in ("0", "1"):
        raise EngineError(
            f"FLEDGE_NATIVE is {setting!r}; use 0 (no kernels) or 1, and FLEDGE_ISA to choose their instructions"
        )
    return setting


def unavailable_reason() -> str:
    """Why the native kernels can't run here; empty when they can."""
    if native_setting() == "0":
        return "FLEDGE_NATIVE=0 turns them off"
    return unfit_machine() or _load(isa())[1]


def unfit_machine() -> str:
    """Why no setting or compiler makes the native kernels run here; empty if system and processor are fit."""
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in ("x86_64", "aarch64"):
        return f"they need Linux on x86-64 or arm64, this is {platform.system()} on {machine}"
    if available_isas():
        return ""
    least = next(s for s in reversed(INSTRUCTION_SETS.values()) if s.machine == machine)
    return f"this processor lacks {', '.join(sorted(least.cpu_flags - cpu_flags()))}"


def available_isas() -> tuple[str, ...]:
    """The names of the instruction sets that this machine has, the fastest first."""
    return _isas_of(platform.machine(), cpu_flags())


@functools.cache
def _isas_of(machine: str, flags: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        name
        for name, needs in INSTRUCTION_SETS.items()
        if needs.machine == machine and needs.cpu_flags <= flags
    )


def isa() -> str:
    """The name of the instruction set that the kernels use: $FLEDGE_ISA, or the fastest one.

    Raises EngineError if this machine doesn't have the one in $FLEDGE_ISA, or none at all.
    """
    there = available_isas()
    wanted = os.environ.get("FLEDGE_ISA") or (there[0] if there else "")
    if wanted not in there:
        raise EngineError(f"FLEDGE_ISA is {wanted!r}; this machine has {', '.join(there) or 'none of them'}")
    return wanted


def instruction_set() -> str:
    """Instruction set of the kernels' matrix products, as it is usually written. Raises as `isa` does."""
    return INSTRUCTION_SETS[isa()].title


def library() -> ctypes.CDLL:
    """The loaded kernels.

    Raises:
        RuntimeError: when they can't run here; ask `unavailable_reason` first.
    """
    if reason := unavailable_reason():
        raise RuntimeError(f"native kernels are not available: {reason}")
    loaded = _load(isa())[0]
    assert loaded is not None
    return loaded


def prebuilt(name: str) -> Path | None:
    """The library of that name which came with the wheel; None without one, or if it is damaged."""
    for library in PREBUILT.glob(f"{name}-*.so"):
        if library.name == named(name, library):
            return library
        logger.warning("%s is damaged; install fledge again", library)
    return None


def compile_library(compiler: str, name: str, folder: Path, flags: Sequence[str]) -> Path:
    """The shared library of all C++ files in `folder`, from the cache or compiled into it.

    The cache knows it by sources, headers included, flags, compiler and processor; one that is damaged is compiled
    again. Raises RuntimeError with the compiler's first error.
    """
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".h", ".cpp"))
    digest = hashlib.sha256("\0".join((compiler, *flags, *sorted(cpu_flags()))).encode())
    for source in sources:
        digest.update(source.read_bytes())
    cache = cache_folder() / "native"
    known = f"{name}-{digest.hexdigest()[:16]}"
    if built := _cached(cache, known):
        return built
    disk.make_folder(cache)
    with disk.file_lock(cache.with_suffix(".lock")):  # of processes that start together, one compiles
        if built := _cached(cache, known):
            return built
        logger.info("compiling the kernels %s for this processor, up to a minute", name)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            units = [source for source in sources if source.suffix == ".cpp"]
            built = _compile(compiler, flags, units, Path(scratch))
            disk.write_through(built)
            target = cache / named(known, built)
            os.replace(built, target)
        disk.write_through(cache)
    return target


def _cached(cache: Path, known: str) -> Path | None:
    """The library of that name in the cache; one that is damaged is deleted."""
    for built in cache.glob(f"{known}-*.so"):
        with suppress(FileNotFoundError):  # another process was faster to delete it
            if built.name == named(known, built):
                return built
            logger.warning("%s is damaged; compiling it again", built)
            built.unlink()
    return None


def _compile(compiler: str, flags: Sequence[str], units: Sequence[Path], scratch: Path) -> Path:
    """A library of the C++ files, in `scratch`. Each file is compiled by itself, as many at once as there are cores."""

    def run(flags: Sequence[str], files: Sequence[str], built: Path) -> Path:
        command = compiler_command(compiler, flags, files, built)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{compiler} could not compile the kernels ({_first_error(result.stderr)})")
        return built

    def compiled(unit: Path) -> str:
        return str(run((*flags, "-c"), [str(unit)], scratch / f"{unit.stem}.o"))

    with ThreadPoolExecutor(default_threads()) as pool:
        objects = list(pool.map(compiled, units))
    return run(flags, objects, scratch / "built.so")


def _first_error(output: str) -> str:
    """The line that says what a compiler choked on: what follows it are quotes of the source and carets."""
    lines = output.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error:" in line), lines[-1])


def compile_kernels(compiler: str, name: str) -> Path:
    """The kernels for an instruction set; see `compile_library`."""
    flags = (*FLAGS, *INSTRUCTION_SETS[name].flags)
    return compile_library(compiler, f"fledge-{name}", Path(__file__).parent, flags)


@functools.cache
def _load(name: str) -> tuple[ctypes.CDLL | None, str]:
    """The kernels for an instruction set, started; or None and the reason."""
    path = prebuilt(f"fledge-{name}")
    try:
        if path is None:
            if not (compiler := find_compiler()):
                return None, "no C++ compiler was found (install g++, or pip install ziglang, or set CXX)"
            path = compile_kernels(compiler, name)
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"{error} (FLEDGE_CACHE names another folder to keep them in)"
    except RuntimeError as error:
        return None, str(error)
    declare(loaded)
    if loaded.fledge_start(default_threads()) != 0:
        return None, "the system refuses AMX state to processes; FLEDGE_ISA=avx512bf16 does without it"
    return loaded, ""


def declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the return types of functions that don't return an int. Raises RuntimeError as `abi.check` does."""
    abi.check(loaded, abi.STRUCTURES, abi.LIMITS)
    loaded.fledge_weight.restype = ctypes.c_void_p
    loaded.fledge_weight_bytes.restype = ctypes.c_int64
    loaded.fledge_read.restype = ctypes.c_uint64
    return loaded
