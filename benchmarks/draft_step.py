"""The time of a native draft step, by head, window and length of the context.

python -m benchmarks.draft_step HEAD ... [--windows 0 512] [--contexts 500 6000] [--rows 4]

Cases take turns, each after reading more memory than a cache holds, as a target's forward does. Printed are medians in
microseconds, the call from Python included, and ratios to the first case.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import torch

from fledge.base.options import DraftWeights
from fledge.draft.cpu import NativeHeadRunner
from fledge.heads import Head
from fledge.target.batch import ForwardBatch

_EVICTS = 40_000_000  # numbers
_CALLS = 3  # after each eviction


def one_level(context: int, rows: int, pages: int) -> ForwardBatch:
    """Rows of one level of a tree, side by side behind `context` committed tokens."""

    def int32(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return ForwardBatch(
        token_ids=int32(list(range(1, rows + 1))),
        positions=int32([context] * rows),
        row_start=int32([0, rows]),
        prefix_length=int32([context]),
        window_offset=int32([0]),
        page_table=torch.arange(pages, dtype=torch.int32)[None],
        window_mask=torch.tensor([1 << row for row in range(rows)]),
    )


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_step", description=__doc__)
    parser.add_argument("heads", nargs="+", help="folders")
    parser.add_argument("--windows", nargs="+", type=int, default=[0])
    parser.add_argument("--contexts", nargs="+", type=int, default=[500])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--draft-weights", choices=["int8", "int4", "bfloat16"], default="int8")
    parser.add_argument("--repeats", type=int, default=100)
    asked = parser.parse_args()
    weights: DraftWeights = asked.draft_weights
    cases, times = {}, dict[str, list[float]]()
    for url, window, context in itertools.product(asked.heads, asked.windows, asked.contexts):
        head = Head.load(url).with_window(window)
        embedding = torch.randn(head.config.vocab_size, head.config.hidden_size).bfloat16()
        runner = NativeHeadRunner(head.config, head.weights, embedding, draft_weights=weights)
        pages = context // runner.page_size + 2
        cases[f"{head.name}, window {window}, context {context}"] = (
            runner,
            one_level(context, asked.rows, pages),
            runner.allocate_kv(pages).normal_(),
            torch.randn(asked.rows, head.config.hidden_size).bfloat16(),
        )
    other = torch.ones(_EVICTS)
    for _ in range(asked.repeats):
        for name, (runner, batch, kv, hidden) in cases.items():
            other.sum()
            begun = time.perf_counter()
            for _ in range(_CALLS):
                runner.forward(batch, kv, features=None, hidden=hidden, k=4)
            times.setdefault(name, []).append((time.perf_counter() - begun) / _CALLS)
    first = next(iter(times.values()))
    for name, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, first, strict=True))
        print(f"{name}: {statistics.median(values) * 1e6:.0f} us ({ratio:.3f})")


if __name__ == "__main__":
    main()
