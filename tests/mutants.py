"""Mutation testing: does a test notice when the code is wrong?  python -m tests.mutants [--room NAME] [--only NAME]

Each mistake of `tests/mutations.py` is made in a private copy of the sources, and its tests are run there, up to the
first that fails. A mutant that no test notices has survived. One whose tests don't end in time is killed, too.

The libraries that take seconds to import are imported once; every run is a fork of this process.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # as in tests/conftest.py, before anything imports Triton
import hypothesis  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest
import torch  # noqa: F401
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401

from tests.mutations import MUTATIONS, ROOMS, Mutation, mutated

ROOT = Path(__file__).parents[1]
LIMIT_S = 180  # for a mutant's tests; kernels are compiled within a minute
_FORK = multiprocessing.get_context("fork")
_copy = Path()  # this worker's copy of the sources


def main() -> int:
    """Print the survivors and how many were killed; 1 if any survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Try each mutation.")
    parser.add_argument("--room", choices=ROOMS, help="only those of a room")
    parser.add_argument("--only", metavar="NAME", help="only those whose name holds this")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at once; each takes about 1 GB")
    given = parser.parse_args()
    chosen = ROOMS[given.room] if given.room else MUTATIONS
    chosen = tuple(mutation for mutation in chosen if (given.only or "") in mutation.name)
    if not chosen:
        parser.error("no mutation has such a name")
    for mutation in chosen:
        mutated(_source(ROOT, mutation).read_text("utf-8"), mutation)
    with (
        tempfile.TemporaryDirectory(prefix="fledge-mutants-") as folder,
        ProcessPoolExecutor(given.jobs, _FORK, _make_copy, (Path(folder),)) as pool,
    ):
        arguments = dict.fromkeys(part for mutation in chosen for part in mutation.tests.split())
        status, output = pool.submit(run_tests, list(arguments), LIMIT_S * 10).result()
        if status != pytest.ExitCode.OK:
            print(output, "\nthe tests fail without a mutation; nothing was tried", sep="")
            return 2
        survived = []
        for mutation, status in zip(chosen, pool.map(try_one, chosen), strict=True):
            if status is None:
                verdict = "killed, out of time"
            elif status == pytest.ExitCode.TESTS_FAILED:
                verdict = "killed"
            else:
                survived.append(mutation)
                verdict = (
                    "survived" if status == pytest.ExitCode.OK else f"not tried: pytest ended with {status}"
                )
            print(f"{mutation.file}: {mutation.name}: {verdict}", flush=True)
    for mutation in survived:
        print(
            f"\nsurvivor {mutation.name} ({mutation.tests}), {mutation.file}:\n- {mutation.old}\n+ {mutation.new}"
        )
    print(f"\n{len(chosen) - len(survived)} of {len(chosen)} mutants killed")
    return 1 if survived else 0


def try_one(mutation: Mutation) -> int | None:
    """Make the mistake in this worker's copy, run its tests, undo it; pytest's status, None if it took too long."""
    path = _source(_copy, mutation)
    before = path.read_text("utf-8")
    _write(path, mutated(before, mutation))
    try:
        return run_tests(mutation.tests.split(), LIMIT_S)[0]
    finally:
        _write(path, before)


def run_tests(arguments: Sequence[str], limit: float) -> tuple[int | None, str]:
    """Run tests in a fork until one fails: pytest's status, None if it took too long, and its last lines."""
    log = _copy / "output"
    child = _FORK.Process(target=_run_pytest, args=(arguments, log))
    child.start()
    child.join(limit)
    status = child.exitcode
    if child.pid is not None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # servers that tests had started, too
    child.join()
    return status, log.read_text("utf-8", errors="replace")[-4000:]


def _run_pytest(arguments: Sequence[str], log: Path) -> None:
    os.setsid()
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(_copy)
    os.environ |= {"PYTHONPATH": str(_copy / "src"), "TMPDIR": str(_copy / "tmp")}
    os.environ["FLEDGE_CACHE"] = str(_copy.parent / "cache")
    tempfile.tempdir = None  # from TMPDIR again
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.path[:0] = [str(_copy), str(_copy / "src")]
    places = [f"tests/{argument}" for argument in arguments]
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    os._exit(pytest.main([*options, *places]))


def _make_copy(folder: Path) -> None:
    """A worker's own sources, and a copy of the user's compiled kernels, which are found by a hash of theirs."""
    global _copy
    _copy = folder / str(os.getpid())
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, _copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.name in ("benchmarks", "data", "deploy", "docs", "notebooks", "results") or path.is_file():
            (_copy / path.name).symlink_to(path)
    (_copy / "tmp").mkdir()
    kernels = Path(os.environ.get("FLEDGE_CACHE") or Path.home() / ".cache" / "fledge") / "native"
    if kernels.is_dir():
        shutil.copytree(kernels, folder / "cache" / "native", dirs_exist_ok=True)


def _source(root: Path, mutation: Mutation) -> Path:
    return root / "src" / "fledge" / mutation.file


def _write(path: Path, text: str) -> None:
    """Write a source file, and let Python compile it again: it tells by whole seconds and the length."""
    path.write_text(text, "utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
