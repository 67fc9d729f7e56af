"""`fledge features --estimate` and `fledge features verify`: what a store will cost, and whether one is sound."""

from __future__ import annotations

from fledge.base.console import StageProgress, clock, print_table, say
from fledge.base.errors import StorageError
from fledge.base.storage import Manifest, exists
from fledge.bench.report.formats import human_bytes
from fledge.features import bytes_per_token, verify_store
from fledge.features.codec import Codec
from fledge.run.estimate import Calibration, conversation_tokens
from fledge.run.folder import DONE_NAME, Run

_CODECS: tuple[Codec, ...] = ("bf16", "fp8")
_SHOWN = 20  # faults


def print_feature_estimate(run: Run) -> None:
    """Bytes, time and money of the features, stored in either form or made again in every pass."""
    recipe = run.recipe
    known = exists(run.url("conversations", DONE_NAME)) or run.is_given("conversations")
    tokens = conversation_tokens(run, known=known)
    # Of a target that transformers spreads over devices nothing is timed: fledge's decoder may not even know it.
    speed = None if recipe.features.device_map else Calibration(run).prefill
    heldout = tokens * recipe.respond.heldout
    # What is made, the tokens that are stored, in which form, and the tokens that the target runs.
    ways: list[tuple[str, float, Codec, float]] = [
        (f"stored, {codec}", tokens, codec, tokens) for codec in _CODECS
    ]
    if speed:
        passes = heldout + (tokens - heldout) * recipe.train.epochs
        made = f"made in training, {recipe.train.epochs:g} times"
        ways.append((made, heldout, recipe.features.codec, passes))
    rows = []
    for name, stored, codec, work in ways:
        size = stored * bytes_per_token(run.target.config.hidden_size, codec)
        money = f"{size / 1e9 * recipe.features.price_per_gb:,.2f}"
        rows.append((name, human_bytes(size), clock(work / speed) if speed else "", money))
    source = "of the conversations on disk" if known else "expected from the recipe"
    print_table(f"{tokens:,.0f} tokens {source}", ["features", "store", "target's time", "per month"], rows)
    timed = f"{speed:,.0f} tokens/s measured here" if speed else "not known with features.device_map"
    say(f"time: {timed}; money: features.price_per_gb = {recipe.features.price_per_gb:g}")


def verify_features(run: Run) -> None:
    """Check a run's store, and what hybrid feeding kept, and print the result; faults are an error."""
    kept = run.url("train", "features")
    stores = [run.url("features"), *([kept] if Manifest.load(kept).shards else [])]
    faulty = [url for url in stores if not _is_sound(url)]
    if faulty:
        raise StorageError(
            f"{' and '.join(faulty)} can't be used as it is; put the files named above back, or delete the folder "
            "and run its stage again"
        )


def _is_sound(url: str) -> bool:
    with StageProgress("verify") as progress:
        found = verify_store(url, progress.update)
    if not found.faults:
        say(
            f"{url} is sound: {found.shards} shards, {found.conversations:,} conversations, {human_bytes(found.bytes)}"
        )
        return True
    say(*(f"fault: {fault}" for fault in found.faults[:_SHOWN]))
    say(f"{url} has {len(found.faults)} faults")
    return False
