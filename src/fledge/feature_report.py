"""`fledge features --estimate` and `fledge features verify`: what a store will cost, and whether one is sound."""

from __future__ import annotations

from fledge.bench.report.formats import human_bytes
from fledge.console import StageProgress, clock, console, print_table
from fledge.errors import StorageError
from fledge.estimate import Calibration, conversation_tokens
from fledge.features import bytes_per_token, verify_store
from fledge.features.codec import Codec
from fledge.run_folder import DONE_NAME, Run
from fledge.storage import Manifest, exists

_CODECS: tuple[Codec, ...] = ("bf16", "fp8")
_SHOWN = 20  # faults


def print_feature_estimate(run: Run) -> None:
    """Bytes, time and money of the features, stored in either form or made again in every pass."""
    recipe, known = run.recipe, exists(run.url("conversations", DONE_NAME))
    tokens = conversation_tokens(run, known=known)
    speed = Calibration(run).prefill
    rows = []
    for codec in _CODECS:
        size = tokens * bytes_per_token(run.target.config.hidden_size, codec)
        money = f"{size / 1e9 * recipe.features.price_per_gb:,.2f}"
        rows.append((f"stored, {codec}", human_bytes(size), clock(tokens / speed), money))
    heldout = tokens * recipe.respond.heldout
    size = heldout * bytes_per_token(run.target.config.hidden_size, recipe.features.codec)
    passes = heldout + (tokens - heldout) * recipe.train.epochs
    rows.append(
        (
            f"made in training, {recipe.train.epochs:g} times",
            human_bytes(size),
            clock(passes / speed),
            f"{size / 1e9 * recipe.features.price_per_gb:,.2f}",
        )
    )
    source = "of the conversations on disk" if known else "expected from the recipe"
    print_table(f"{tokens:,.0f} tokens {source}", ["features", "store", "target's time", "per month"], rows)
    console.print(
        f"time: {speed:,.0f} tokens/s measured here; money: features.price_per_gb = {recipe.features.price_per_gb:g}",
        markup=False,
        soft_wrap=True,
    )


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
        console.print(
            f"{url} is sound: {found.shards} shards, {found.conversations:,} conversations, {human_bytes(found.bytes)}",
            markup=False,
            soft_wrap=True,
        )
        return True
    for fault in found.faults[:_SHOWN]:
        console.print(f"fault: {fault}", markup=False, soft_wrap=True)
    console.print(f"{url} has {len(found.faults)} faults", markup=False, soft_wrap=True)
    return False
