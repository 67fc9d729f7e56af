"""Peak memory of loading a target into an engine with a small KV pool, in its file's form and in 8 and 4 bits.

python -m benchmarks.loading_memory MODEL ...     # such as what benchmarks.made_llama has written

Each is loaded in a process of its own that has no note of its hash, as at first. The bound is 1.25 times the weights
in memory and 350 MB for Python, torch, the tokenizer and all else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from fledge.engine import Engine
from fledge.sources.gguf import is_gguf
from fledge.target import Target
from fledge.target.matrix import Quantization

_MB = 1e6


class Loaded(NamedTuple):
    """Bytes and seconds of loading a target."""

    weights: int  # in memory
    before: int  # the process's peak
    peak: int
    seconds: float

    @property
    def bound(self) -> float:
        """What the peak must stay below."""
        return 1.25 * self.weights + 350 * _MB


def load(model: str, quantization: Quantization | None = None) -> Loaded:
    """Load it in this process."""
    before, begun = peak_memory(), time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        target = Target.load(model, quantization=quantization, cache_dir=cache)
        Engine(target, max_batch=1, max_context=512, kv_tokens=1024)
    return Loaded(int(target.memory_bytes), before, peak_memory(), time.perf_counter() - begun)


def peak_memory() -> int:
    """The process's largest resident set so far; getrusage counts its parent's in."""
    status = Path("/proc/self/status").read_text("utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    """Print a table: a line for each model and form."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading_memory", description=__doc__)
    parser.add_argument("models", nargs="+", help="folder, hub id, GGUF file or package")
    parser.add_argument("--quantization", choices=["q8_0", "q4_0"], help=argparse.SUPPRESS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(load(asked.models[0], asked.quantization)))
        return
    print("| model | form | weights, MB | VmHWM, MB | bound, MB | seconds |\n|---|---|---|---|---|---|")
    for model in asked.models:
        for form in (None,) if is_gguf(Path(model)) else (None, "q8_0", "q4_0"):
            command = [sys.executable, "-m", "benchmarks.loading_memory", model, "--here"]
            command += ["--quantization", form] if form else []
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = Loaded(*json.loads(done.stdout.splitlines()[-1]))
            sizes = " | ".join(f"{size / _MB:.0f}" for size in (found.weights, found.peak, found.bound))
            print(
                f"| {Path(model).name} | {form or 'as it is'} | {sizes} | {found.seconds:.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
