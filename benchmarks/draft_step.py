"""The time of one draft step, by head, window and length of the context.

python -m benchmarks.draft_step TARGET HEAD ... [--windows 0 512] [--contexts 500 6000] [--rows 4]

Cases take turns, each after more memory was read than a cache holds, as a target's forward does. Printed are medians in
microseconds, the call from Python included, and ratios to the first case.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch

from benchmarks.forwards import BatchMaker, draft_step, median_ms
from fledge.heads import Head, head_runner
from fledge.released import head_url
from fledge.target import Target

_EVICTS = 40_000_000  # numbers


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_step", description=__doc__)
    parser.add_argument("model", help="folder, hub id, GGUF file or package")
    parser.add_argument("heads", nargs="+", help="folders, or `released`")
    parser.add_argument("--windows", nargs="+", type=int, default=[0])
    parser.add_argument("--contexts", nargs="+", type=int, default=[500])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--draft-weights", choices=["int8", "int4", "bfloat16"], default="int8")
    parser.add_argument("--repeats", type=int, default=100)
    asked = parser.parse_args()
    target = Target.load(asked.model)
    calls: dict[str | int, Callable[[], object]] = {}
    for url, window, context in itertools.product(asked.heads, asked.windows, asked.contexts):
        head = Head.load(head_url(target, url)).with_window(window)
        runner = head_runner(target, head, draft_weights=asked.draft_weights)
        name = f"{head.name}, window {window}, context {context}"
        calls[name] = draft_step(runner, BatchMaker(target, context), target, asked.rows)
    other = torch.ones(_EVICTS)
    times = median_ms(calls, asked.repeats, target.decoder.device, before=other.sum)
    first = next(iter(times.values()))
    for case, milliseconds in times.items():
        print(f"{case}: {milliseconds * 1e3:.0f} us ({milliseconds / first:.3f})")


if __name__ == "__main__":
    main()
