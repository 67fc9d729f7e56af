"""A whole run in seconds: a recipe for the tiny random target, whose text only has to pass the filters."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import yaml

from fledge.commands.main import main
from tests.base.forked import forked


def write_small_recipe(path: Path, target: Path) -> Path:
    """A recipe file for `target`. The opening and its ending make even a random target write unlike prompts."""
    recipe = {
        "target": {"model": str(target)},
        "prompts": {
            "count": 20,
            "max_tokens": 24,
            "shard_size": 50,
            "max_batch": 8,
            "near_repeat": 1.0,
            "max_attempts": 100,
            "openings": [{"category": "chat", "text": "Why is the sky blue", "until": "a"}],
        },
        "respond": {
            "max_new_tokens": 24,
            "max_prompt_tokens": 128,
            "shard_size": 8,
            "max_batch": 8,
            "heldout": 0.4,
        },
        "features": {"shard_mib": 1, "batch_tokens": 256},
        "train": {
            "draft_vocab_size": 128,
            "epochs": 2,
            "batch_tokens": 256,
            "evaluate_every": 5,
            "checkpoint_seconds": 0.001,
            "ttt_steps": 3,
        },
        "evaluate": {"depth": 3, "batch_tokens": 256},
        "bench": {
            "own_prompts": 2,
            "max_tokens": 8,
            "repeats": 1,
            "warmup": 1,
            "samples": 1,
            "concurrency": [1, 2],
            "sweep_tokens": 4,
            "sweep_requests": 2,
            "sweep_repeats": 1,
            "bandwidth": False,
        },
    }
    path.write_text(yaml.safe_dump(recipe))
    return path


def start_fledge(*arguments: str, output: Path, entry: Callable[[], None] = main) -> BaseProcess:
    """A command line in a process of its own; what it prints goes to `output`."""
    return forked(_run, arguments, output, entry)


def _run(arguments: tuple[str, ...], output: Path, entry: Callable[[], None]) -> None:
    printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.argv = ["fledge", *arguments]
    entry()
