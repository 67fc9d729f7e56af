"""Compiler, instruction sets, their requirements and flags, for compiling the C++.

hatch_build.py and install.py run this file when fledge isn't installed yet, so it imports nothing else of the package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread")
# Of the training kernels: -ffast-math without the start-up code it links into libraries, which would change the
# process' rounding mode.
TRAIN_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffinite-math-only",
    "-fassociative-math",
    "-freciprocal-math",
    "-shared",
    "-fPIC",
    "-Wl,-z,defs",  # a compiler without OpenMP's library says so
)


class InstructionSet(NamedTuple):
    """Instruction set that the kernels can be compiled for: processors that have it, and the compiler's flags."""

    title: str
    machine: str  # as in `platform.machine`
    cpu_flags: frozenset[str]  # which a processor needs; see `cpu_flags`
    flags: tuple[str, ...]


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BF16 = _AVX512 | {"avx512_bf16", "avx512_vnni"}
_BF16_FLAGS = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni")
INSTRUCTION_SETS = {  # by their names in $FLEDGE_ISA, the fastest first
    "amx": InstructionSet(
        "AMX", "x86_64", _BF16 | {"amx_tile", "amx_bf16"},
        (*_BF16_FLAGS, "-mamx-tile", "-mamx-bf16"),
    ),
    "avx512bf16": InstructionSet("AVX-512 bf16", "x86_64", _BF16, _BF16_FLAGS),
    "avx512": InstructionSet("AVX-512", "x86_64", _AVX512, ("-march=x86-64-v4",)),
    "avxvnni": InstructionSet(
        "AVX-VNNI", "x86_64", _AVX2 | {"avx_vnni"}, ("-march=x86-64", "-mavx2", "-mfma", "-mf16c", "-mavxvnni")
    ),
    "avx2": InstructionSet("AVX2", "x86_64", _AVX2, ("-march=x86-64", "-mavx2", "-mfma", "-mf16c")),
    "dotprod": InstructionSet(
        "NEON with dot products", "aarch64", frozenset({"asimd", "asimddp"}), ("-march=armv8.2-a+dotprod",)
    ),
    "neon": InstructionSet("NEON", "aarch64", frozenset({"asimd"}), ("-mcpu=generic",)),
}  # fmt: skip


def system_compiler() -> str | None:
    """The command of a C++ compiler: $CXX, or the one on the path."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def find_compiler() -> str | None:
    """The system's compiler, or that of the package ziglang, if there is any."""
    if compiler := system_compiler():
        return compiler
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        return None
    return f"{shlex.quote(str(Path(package.origin).with_name('zig')))} c++"


def compiler_command(compiler: str, flags: Sequence[str], units: Sequence[str], built: Path) -> list[str]:
    """The command that compiles and links the files `units` into the library `built`."""
    command = shlex.split(compiler)
    if Path(command[0]).name == "zig":  # which writes processors in its own way
        flags = [flag.replace("x86-64", "x86_64").replace("-v4", "_v4") for flag in flags]
    return [*command, *flags, *units, "-o", str(built)]


def named(known: str, built: Path) -> str:
    """A library's file name. It ends with its checksum, for loading half a library is a bus error."""
    return f"{known}-{hashlib.sha256(built.read_bytes()).hexdigest()[:16]}.so"
