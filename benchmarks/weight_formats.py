"""Time of all matrix products of a forward of SmolLM2-135M, by the weights' format and the number of rows.

python -m benchmarks.weight_formats [--repeats 15]

Formats and numbers of rows take turns, so that all meet the same states of the machine; medians are printed.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time

import torch

from fledge.native import ops
from fledge.native.build import isa, library

_LAYERS, _PRODUCTS, _LM_HEAD = 30, ((960, 576), (576, 576), (3072, 576), (576, 1536)), (49152, 576)
_ROWS = (1, 2, 4, 8, 16)
_FORMATS = {
    "bf16": ops.Format(0),
    "8 bits (Q8_0)": ops.Format(0, 8, 1, zero=128),
    "6 bits of 16 (Q6_K)": ops.Format(0, 6, 2, zero=32),
    "4 bits (Q4_0)": ops.Format(0, 4, 1, zero=8),
    "4 bits, minima (Q4_1, Q4_K)": ops.Format(0, 4, 1, minima=True),
}


def random_weight(form: ops.Format, outputs: int, inputs: int) -> ops.Weight:
    """A weight of that format with random codes."""
    weight = ops.Weight(inputs, [form._replace(rows=outputs)])
    if not weight.coded:
        weight.pack_numbers(0, torch.randn(outputs, inputs))
        return weight
    scale = torch.rand(outputs, inputs // 32 * form.groups).half() / 100
    values = torch.randint(0, 1 << form.bits, (outputs, inputs), dtype=torch.uint8)
    weight.pack_codes(0, values, scale, scale if form.minima else None)
    return weight


def main() -> None:
    """Print a table: a line for each format."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weight_formats", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    shapes = [*_PRODUCTS * _LAYERS, _LM_HEAD]
    weights = {name: [random_weight(form, *shape) for shape in shapes] for name, form in _FORMATS.items()}
    x = {width: torch.randn(32, width).bfloat16() for width in (576, 1536)}
    out, kernels = torch.empty(max(_ROWS), _LM_HEAD[0]), library()
    calls = {
        name: [(ctypes.c_void_p(x[w.shape[1]].data_ptr()), ctypes.c_void_p(w.pointer)) for w in made]
        for name, made in weights.items()
    }
    target = ctypes.c_void_p(out.data_ptr())
    took: dict[tuple[str, int], list[float]] = {}
    for _ in range(repeats):
        for rows in _ROWS:
            for name in _FORMATS:
                begun = time.perf_counter()
                for activations, pointer in calls[name]:
                    kernels.fledge_multiply(activations, rows, pointer, target)
                took.setdefault((name, rows), []).append(time.perf_counter() - begun)
    print(f"{isa()}: ms of {len(shapes)} products, with a call each")
    print("| format | MB |", " | ".join(f"{rows} rows" for rows in _ROWS), "|")
    for name, made in weights.items():
        times = [f"{1e3 * statistics.median(took[name, rows]):.2f}" for rows in _ROWS]
        print(f"| {name} | {sum(w.bytes for w in made) / 1e6:.0f} |", " | ".join(times), "|")


if __name__ == "__main__":
    main()
