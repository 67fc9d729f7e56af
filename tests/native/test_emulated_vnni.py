"""The kernels for AVX-VNNI on any processor with AVX2: its dot product emulated, its products those of AVX2."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fledge.native import build, ops
from tests.native import test_codes as codes

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif("avx2" not in build.available_isas(), reason="the emulation needs AVX2"),
]


@pytest.fixture(scope="module", autouse=True)
def emulated() -> Iterator[ctypes.CDLL]:
    header = Path(__file__).parent / "emulated_vnni.h"
    compiler = build.find_compiler()
    assert compiler
    quick = ("-O1" if flag == "-O3" else flag for flag in build.FLAGS)
    flags = (*quick, *build.INSTRUCTION_SETS["avx2"].flags, "-include", str(header))
    name = f"emulated-vnni-{zlib.crc32(header.read_bytes()):08x}"
    path = build.compile_library(compiler, name, Path(build.__file__).parent, flags)
    loaded = build.declare(ctypes.CDLL(str(path)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_load", lambda isa: (loaded, ""))
        yield loaded


@pytest.mark.parametrize("f", codes.FORMATS.values(), ids=codes.FORMATS)
def test_every_format(f: ops.Format) -> None:
    codes.test_rows_are_read_back(f)
    codes.test_products_with_rows_that_eight_bits_hold_are_exact(f)
    codes.test_a_row_has_the_same_product_whatever_is_beside_it(f)
