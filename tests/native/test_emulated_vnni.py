"""The kernels for AVX-VNNI on any processor with AVX2: its dot product emulated, its products those of AVX2."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from fledge.native import build, ops
from tests.native import test_codes as codes
from tests.native.emulation import emulated_kernels

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif("avx2" not in build.available_isas(), reason="the emulation needs AVX2"),
]


@pytest.fixture(scope="module", autouse=True)
def emulated() -> Iterator[ctypes.CDLL]:
    loaded = emulated_kernels("emulated_vnni.h", "avx2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_load", lambda isa: (loaded, ""))
        yield loaded


@pytest.mark.parametrize("f", codes.FORMATS.values(), ids=codes.FORMATS)
def test_every_format(f: ops.Format) -> None:
    codes.test_rows_are_read_back(f)
    codes.test_products_with_rows_that_eight_bits_hold_are_exact(f)
    codes.test_a_row_has_the_same_product_whatever_is_beside_it(f)
