"""The kernels on arm64: compiled for NEON by a cross compiler, run by an emulator, compared with this processor's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fledge.native import build

CROSS, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
MAIN = Path(__file__).parent / "print_results.cpp"

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(
        not (CROSS and EMULATOR),
        reason="arm64 needs a cross compiler and an emulator: apt-get install g++-aarch64-linux-gnu qemu-user",
    ),
]

Results = list[tuple[str, np.ndarray]]


def results(compiler: str, isa: str, folder: Path, run: Sequence[str] = ()) -> Results:
    """What the program prints, with the kernels compiled for `isa`."""
    library, program = build.compile_kernels(compiler, isa), folder / isa
    flags = ("-std=c++17", "-O1", *build.INSTRUCTION_SETS[isa].flags, f"-I{Path(build.__file__).parent}")
    linked = (str(library), f"-Wl,-rpath,{library.parent}")
    subprocess.run(build.compiler_command(compiler, flags, (str(MAIN), *linked), program), check=True)
    told = subprocess.run([*run, str(program)], check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in told.splitlines()]
    return [(name, np.array(values, dtype=np.float64)) for name, *values in lines]


@pytest.mark.parametrize("isa", [pytest.param("neon", marks=pytest.mark.slow), "dotprod"])
def test_arm64_computes_what_this_processor_computes(tmp_path: Path, isa: str) -> None:
    compiler = build.find_compiler()
    assert CROSS and EMULATOR and compiler  # noqa: PT018
    here = results(compiler, build.isa(), tmp_path)
    there = results(CROSS, isa, tmp_path, (EMULATOR, "-L", "/usr/aarch64-linux-gnu"))
    assert [name for name, _ in there] == [name for name, _ in here]
    for (name, got), (_, expected) in zip(there, here, strict=True):
        if name == "tokens":
            assert np.array_equal(got, expected)
        else:
            assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max(), name
    nodes, steps = ([values for name, values in there if name == wanted] for wanted in ("tree", "step"))
    for node, step in zip((0, 1, 3), steps, strict=True):
        assert np.array_equal(nodes[node], step), node
