"""The kernels for instructions that this processor may lack, with plain C++ in place of their intrinsics."""

from __future__ import annotations

import ctypes
import zlib
from pathlib import Path

from fledge.native import build


def emulated_kernels(header: str, isa: str) -> ctypes.CDLL:
    """The kernels for `isa` with a header of this folder before them. Their threads are never started."""
    path = Path(__file__).parent / header
    compiler = build.find_compiler()
    assert compiler
    quick = ("-O1" if flag == "-O3" else flag for flag in build.FLAGS)  # to compile
    flags = (*quick, *build.INSTRUCTION_SETS[isa].flags, "-include", str(path))
    name = f"{path.stem}-{zlib.crc32(path.read_bytes()):08x}"
    library = build.compile_library(compiler, name, Path(build.__file__).parent, flags)
    return build.declare(ctypes.CDLL(str(library)))
