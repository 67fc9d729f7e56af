"""Triton's own compiler without a GPU: kernels are launched as ever, compiled for sm_90 or another, and not run.

Launch in a process of its own (`compiled`), for the tests' process has Triton's interpreter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple


class Compiled(NamedTuple):
    """What ptxas made of one variant of a kernel."""

    kernel: str
    shared: int  # bytes of shared memory
    stack: int  # bytes a thread; anything but 0 is slow
    spills: int  # instructions that read or write it
    tensor: int  # instructions of tensor cores
    loop: int  # instructions of the shortest loop with tensor-core instructions; 0: there is none
    offsets: list[str]  # types in which places in tensors of floats are computed


def compiled(program: str, folder: Path, capability: int = 90) -> list[Compiled]:
    """What the kernels in `launched`, which the program defines, were compiled to; kernels by their launches.

    The program launches them on CPU tensors. `folder`: for Triton's cache.
    """
    before = f"from tests import triton_compiler\ntriton_compiler._pretend({capability})\n"
    after = "\ntriton_compiler._report(launched)"
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", before + program + after], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Compiled(*line) for line in json.loads(done.stdout)]


def _pretend(capability: int) -> None:
    """Make Triton believe in a GPU."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    torch.set_num_threads(1)
    properties = {
        "max_shared_mem": 227 << 10,
        "multiprocessor_count": 132,
        "max_num_regs": 65536,
        "warpSize": 32,
    }
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            set_current_device=lambda device: None,
            get_current_target=lambda: GPUTarget("cuda", capability, 32),
            launcher_cls=lambda source, metadata: lambda *arguments: None,
            utils=SimpleNamespace(
                load_binary=lambda *arguments: (1, 1, 0, 0, 1024),  # no registers are reported as spilled
                unload_module=lambda module: None,
                get_device_properties=lambda device: properties,
            ),
        )
    )


def _report(launched: list[Any]) -> None:
    variants = [
        (kernel.__name__, variant)
        for kernel in launched
        for cache in kernel.device_caches.values()
        for variant in cache[0].values()
    ]
    print(json.dumps([_read(name, variant) for name, variant in variants]))


def _read(name: str, variant: Any) -> Compiled:
    from triton.backends import nvidia

    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(variant.asm["cubin"])
        file.flush()
        text = subprocess.check_output([tool, "-res-usage", "-sass", file.name], text=True)
    found = re.search(r"STACK:(\d+)", text)
    assert found is not None
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(\S[^;]*);", text)
    number = {int(address, 16): i for i, (address, _) in enumerate(lines)}
    loops = []  # from the target of a branch backwards to the branch
    for i, (address, instruction) in enumerate(lines):
        branch = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", instruction)
        if branch is not None and int(branch[1], 16) < int(address, 16):
            loops.append([body for _, body in lines[number[int(branch[1], 16)] : i + 1]])
    return Compiled(
        name,
        variant.metadata.shared,
        int(found[1]),
        sum(bool(re.search(r"\b(LDL|STL)\b", instruction)) for _, instruction in lines),
        sum(_on_tensor_cores(instruction) for _, instruction in lines),
        min((len(loop) for loop in loops if any(map(_on_tensor_cores, loop))), default=0),
        _offsets(variant.asm["ttir"]),
    )


def _offsets(code: str) -> list[str]:
    """What is added to tensors of pointers, and i32 where `slot_stride` is used without having been widened."""
    added = re.findall(r"tt\.addptr .*: tensor<[x\d]*!tt\.ptr<b?f\d+>>, tensor<[x\d]*x(i\d+)>", code)
    used = re.findall(r"^ *%\S+ = (\S+) .*%slot_stride\b", code, re.MULTILINE)
    return added + ["i64" if operation == "arith.extsi" else "i32" for operation in used]


def _on_tensor_cores(instruction: str) -> bool:
    return bool(re.search(r"\b(HGMMA|HMMA)\b", instruction))
