"""The parts of `fledge features` other than extraction: `--estimate`, `--server-command`, and `verify`."""

from __future__ import annotations

import shlex

import typer

from fledge.base.console import StageProgress, clock, human_bytes, plural, print_table, say
from fledge.base.errors import StorageError
from fledge.base.storage import Manifest, exists
from fledge.features import bytes_per_token, server_arguments, verify_store
from fledge.features.options import Codec
from fledge.run.estimate import Calibration, conversation_tokens
from fledge.run.folder import DONE_NAME, Run

_CODECS: tuple[Codec, ...] = ("bf16", "fp8")
_SHOWN = 20  # faults


def print_feature_estimate(run: Run) -> None:
    """Print bytes, time and money of the features, stored with either codec or computed in every pass."""
    recipe = run.recipe
    complete = exists(run.url("conversations", DONE_NAME)) or run.is_given("conversations")
    tokens = conversation_tokens(run, known=complete)
    # Nothing is timed where fledge's decoder isn't used: it may not support such a target.
    speed = Calibration(run).prefill if recipe.features.uses_decoder else None
    heldout = tokens * recipe.respond.heldout
    # Label, tokens stored, codec, and tokens the target runs.
    ways: list[tuple[str, float, Codec, float]] = [
        (f"stored, {codec}", tokens, codec, tokens) for codec in _CODECS
    ]
    if speed:
        passes = heldout + (tokens - heldout) * recipe.train.epochs
        label = f"made in training, {recipe.train.epochs:g} times"
        ways.append((label, heldout, recipe.features.codec, passes))
    rows = []
    for name, stored, codec, work in ways:
        size = stored * bytes_per_token(run.target.config.hidden_size, codec)
        money = f"{size / 1e9 * recipe.features.price_per_gb:,.2f}"
        rows.append((name, human_bytes(size), clock(work / speed) if speed else "", money))
    source = "of the conversations on disk" if complete else "expected from the recipe"
    print_table(f"{tokens:,.0f} tokens {source}", ["features", "store", "target's time", "per month"], rows)
    timed = (
        f"{speed:,.0f} tokens/s measured here" if speed else "not known with features.device_map or server"
    )
    say(f"time: {timed}; money: features.price_per_gb = {recipe.features.price_per_gb:g}")


def print_server_command(run: Run, folder: str) -> None:
    """Print the command of a vLLM server that writes the target's hidden states into a folder."""
    command = ["vllm", "serve", str(run.target.checkpoint), *server_arguments(run.target, folder)]
    typer.echo(shlex.join(command))  # in one line, to be run


def verify_features(run: Run) -> None:
    """Check a run's store and any features stored by hybrid feeding, and print the result; faults are an error."""
    hybrid = run.url("train", "features")
    stores = [run.url("features"), *([hybrid] if Manifest.load(hybrid).shards else [])]
    faulty = [url for url in stores if not _is_sound(url)]
    if faulty:
        raise StorageError(
            f"{' and '.join(faulty)} can't be used as it is; put the files named above back, or delete the folder "
            "and run its stage again"
        )


def _is_sound(url: str) -> bool:
    with StageProgress("verify") as progress:
        check = verify_store(url, progress.update)
    if not check.faults:
        counts = f"{plural(check.shards, 'shard')}, {plural(check.conversations, 'conversation')}"
        say(f"{url} is sound: {counts}, {human_bytes(check.bytes)}")
        return True
    say(*(f"fault: {fault}" for fault in check.faults[:_SHOWN]))
    say(f"{url} has {plural(len(check.faults), 'fault')}")
    return False
