"""The Triton kernels compile for GPUs, as they are launched, and fit them; no GPU is needed for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton isn't installed: pip install 'fledge[gpu]'")

_SMALLEST = 99 << 10  # bytes of shared memory a block may have on an L4, an A10 or an RTX 30 and 40
_PROGRAM = """
import sys
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from fledge.attention import triton as kernels
from tests.target.paging import make_batch, scattered_pages

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64"}
launched = []


class Launch:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *given, **constants: launched.append((self.kernel, given, constants))


def type_of(value):
    if isinstance(value, torch.Tensor):
        return "*" + NAMES[value.dtype]
    return "i32" if isinstance(value, int) else "fp32"


kernels._attend, kernels._merge = Launch(kernels._attend), Launch(kernels._merge)
batch = make_batch([[0, 0]], scattered_pages(1, 64), prefix=[600], offset=[0], masks=[[1, 3]])
for dtype in (torch.bfloat16, torch.float32):
    query, keys = torch.zeros(2, 8, 128, dtype=dtype), torch.zeros(1024, 2, 128, dtype=dtype)
    for rows in (batch, batch._replace(window_mask=None)):
        for sinks in (None, query[0, :, 0].clone()):
            kernels.TritonAttention(rows, 16).attend(query, keys, keys, sinks)
for kernel, given, constants in launched:
    names = kernel.arg_names
    signature = dict(zip(names, map(type_of, given))) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    print(compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32)).metadata.shared)
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_they_compile_and_fit(capability: int, tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(capability)], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shared = [int(line) for line in done.stdout.split()]
    assert len(shared) == 16
    assert max(shared) <= _SMALLEST
