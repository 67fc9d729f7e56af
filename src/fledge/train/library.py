"""Compiling, loading and calling kernels.cpp and attention.cpp: once per machine, in about a second, then cached.

Without a C++ compiler those of a wheel are used. Without either, or with FLEDGE_NATIVE=0, training runs on torch alone,
at about half the speed.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable
from ctypes import Structure, c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from fledge.native import abi
from fledge.native.build import (
    available_isas,
    compile_library,
    find_compiler,
    native_setting,
    prebuilt,
)
from fledge.native.instruction_sets import TRAIN_FLAGS

logger = logging.getLogger("fledge")

MAX_STEPS, MAX_HEAD_DIM = 16, 256


class FledgeBlock(Structure):
    """One block of the unroll's attention; mirrors attention.cpp."""

    _fields_ = [
        ("rows", c_void_p),
        ("seen", c_void_p),
        *((name, c_int64) for name in ("b", "q", "kv", "group", "width", "keys", "steps", "window", "sinks")),
        *((name, c_int64) for name in ("key_stride", "value_stride")),
        *((name, c_void_p * MAX_STEPS) for name in ("own_keys", "own_values")),
        ("threads", c_int),
    ]


def call(kernel: Callable[..., object], *arguments: Tensor | float | None) -> None:
    """Call a kernel with these arguments, followed by torch's thread count.

    Tensors must be contiguous unless the kernel takes their strides.
    """
    kernel(*map(as_c, arguments), c_int(torch.get_num_threads()))


def as_c(value: object) -> object:
    """A tensor as the address of its memory, None as a null pointer, numbers as int64 and float."""
    if value is None or isinstance(value, Tensor):
        return c_void_p(None if value is None else value.data_ptr())
    if isinstance(value, int):
        return c_int64(value)
    return c_float(value) if isinstance(value, float) else value


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """The compiled kernels, or None without a compiler and a wheel's, or with FLEDGE_NATIVE=0."""
    if native_setting() == "0":
        return None
    try:
        loaded = ctypes.CDLL(str(_find_library()))
    except (OSError, RuntimeError) as error:
        logger.warning("training without compiled kernels, at about half the speed: %s", error)
        return None
    abi.check(loaded, [FledgeBlock], {"MAX_STEPS": MAX_STEPS, "MAX_HEAD_DIM": MAX_HEAD_DIM})
    return loaded


def _find_library() -> Path:
    """The kernels compiled for this very processor, or else a wheel's, which are some percent slower.

    Raises an OSError or RuntimeError that says why there are none.
    """
    error: Exception = RuntimeError("no C++ compiler was found")
    if compiler := find_compiler():
        try:
            flags = (*TRAIN_FLAGS, "-march=native")
            return compile_library(compiler, "train", Path(__file__).parent, flags)
        except (OSError, RuntimeError) as failed:
            error = failed
    for isa in available_isas():
        if (path := prebuilt(f"train-{isa}")) is not None:
            return path
    raise error
