"""Building and calling kernels.cpp and attention.cpp: compiled once per machine in about a second, then cached.

Without a C++ compiler, or with FLEDGE_NATIVE=0, training runs on torch alone, at about half the speed.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from fledge.native.build import compile_library, find_compiler, native_setting

logger = logging.getLogger("fledge")

# What -ffast-math allows, without the code it adds to libraries, which would change the process' rounding mode.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffinite-math-only",
    "-fassociative-math",
    "-freciprocal-math",
    "-shared",
    "-fPIC",
)


def kernels_for(*tensors: Tensor | None) -> ctypes.CDLL | None:
    """The kernels, if these tensors are bf16 on a CPU and the machine can compile; None: use torch."""
    if any(t is not None and (t.dtype != torch.bfloat16 or t.device.type != "cpu") for t in tensors):
        return None
    return _library()


def address(tensor: Tensor | None) -> c_void_p:
    """A tensor's memory; it must be contiguous where the kernel doesn't take strides."""
    return c_void_p(None if tensor is None else tensor.data_ptr())


def size(value: int) -> c_int64:
    """A count or stride."""
    return c_int64(value)


def number(value: float) -> c_float:
    """A float argument."""
    return c_float(value)


def threads() -> c_int:
    """As many as torch uses."""
    return c_int(torch.get_num_threads())


@functools.cache
def _library() -> ctypes.CDLL | None:
    if native_setting() == "0":
        return None
    compiler = find_compiler()
    if not compiler:
        logger.info("training without compiled kernels, at about half the speed: no C++ compiler was found")
        return None
    try:
        return ctypes.CDLL(str(compile_library(compiler, "train", Path(__file__).parent, _FLAGS)))
    except (OSError, RuntimeError) as error:
        logger.info("training without compiled kernels, at about half the speed: %s", error)
        return None
