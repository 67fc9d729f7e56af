"""What the clients' scripts are written with.

@tried("chat")
def chat():
    assert client.chat...          an error: it doesn't work
    return "the model ..."         optional: it works, as far as this limit of the model lets it
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

URL = os.environ["CLIENT_URL"]  # of the server, without /v1
PLAIN_URL = os.environ["CLIENT_PLAIN_URL"]  # of another one of the same target, without a head
MODEL = os.environ["CLIENT_MODEL"]
TARGET = os.environ["CLIENT_TARGET"]  # a folder, for its tokenizer
HERE = Path(__file__).parent
_SHOWN = 400  # characters of an error
_RUNNER = asyncio.Runner()  # one loop for all trials: some clients keep connections


def tried(what: str) -> Callable[[Callable[[], Any]], None]:
    """Run the function at once and record how it went."""

    def run(trial: Callable[[], Any]) -> None:
        try:
            limit = _RUNNER.run(trial()) if inspect.iscoroutinefunction(trial) else trial()
        except BaseException as error:
            traceback.print_exc()
            record(what, works=False, note=f"{type(error).__name__}: {error}"[:_SHOWN])
        else:
            record(what, works=True, note=limit or "")

    return run


def record(what: str, *, works: bool, note: str) -> None:
    """One line for the table."""
    with open(os.environ["CLIENT_RECORD"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"what": what, "works": works, "note": " ".join(note.split())}) + "\n")


def output_of(*arguments: str, cwd: Path | None = None) -> str:
    """Run a command; an error that holds the end of its output if it fails."""
    done = subprocess.run(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd, check=False
    )
    print(done.stdout)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} ended with code {done.returncode}: {done.stdout[-500:]}")
    return done.stdout
