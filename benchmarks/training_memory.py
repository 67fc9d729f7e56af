"""Peak memory of training from a small and a large store.

    python -m benchmarks.training_memory [--tokens 100000 4000000]


The stores are synthetic, conversations of 300 tokens with random hidden states of a tiny target; one pass, every
option alike. Each training is a process of its own that prints its peak resident memory.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from fledge.base.storage import Manifest
from fledge.features import FeatureStore, write_shard
from fledge.train import TrainOptions, train
from tests.heads.tiny_head import load_tiny_target
from tests.tiny import TinyShape, save_tiny_target
from tests.train.samples import make_sample

LENGTH, SHARD = 300, 200  # tokens of a conversation, conversations of a shard
OPTIONS = TrainOptions(draft_vocab_size=256, ttt_steps=2, epochs=1, batch_tokens=8192, evaluate_every=10**6)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[100_000, 4_000_000])
    arguments.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.train:
        train_once(*given.train)
        return
    peaks = []
    with tempfile.TemporaryDirectory() as place:
        folder = save_tiny_target(Path(place) / "target", shape=TinyShape(layers=4), seed=3)
        for tokens in given.tokens:
            store = f"{place}/{tokens}"
            fill(store, tokens)
            started = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.training_memory", "--train", str(folder), store]
            peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            seconds = time.perf_counter() - started
            print(f"{tokens:>10,} tokens: peak {peaks[-1] / 1024:.0f} MiB, {seconds:.0f} s", flush=True)
    print(f"largest over smallest: {max(peaks) / min(peaks) - 1:+.1%}")


def fill(url: str, tokens: int) -> None:
    """A store of so many tokens; the same 50 conversations under other names again and again."""
    known = [make_sample([(60, LENGTH - 60)], seed=seed) for seed in range(50)]
    manifest, count = Manifest.load(url), tokens // LENGTH
    for first in range(0, count, SHARD):
        numbers = range(first, min(count, first + SHARD))
        named = [
            replace(
                known[n % len(known)], conversation_id=f"c{n}", split="heldout" if n % 50 == 7 else "train"
            )
            for n in numbers
        ]
        manifest = write_shard(manifest, named)
    assert FeatureStore(url).manifest.records == count


def train_once(target: str, store: str) -> None:
    train(load_tiny_target(Path(target), "bfloat16"), store, OPTIONS, f"{store}/head", f"{store}/train")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    main()
