"""`python -m tests.gpu`: all parts that fit into the time, the decisive ones first. See `make gpu`."""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported, which torch may do

import torch

from tests.gpu.answers import answers, float32
from tests.gpu.device import device
from tests.gpu.kernels import kernels
from tests.gpu.reads import reads
from tests.gpu.record import Check
from tests.gpu.smollm2 import smollm2
from tests.gpu.speed import speed
from tests.gpu.training import training

PARTS = {part.__name__: part for part in (device, kernels, answers, training, reads, speed, float32, smollm2)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if no case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=7.5, help="cases that don't fit are left to the next run"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of a GPU's results")
    parser.add_argument("--rehearsal", type=Path, default=Path("runs/gpu"), help="and of a rehearsal's")
    parser.add_argument("--only", default="", help=f"some parts, with commas between: {', '.join(PARTS)}")
    parser.add_argument("--small", action="store_true", help="rehearse on a GPU, too")
    given = parser.parse_args(arguments)
    gpu = torch.cuda.is_available() and not given.small
    card = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-") if gpu else "rehearsal"
    check = Check(
        (given.results if gpu else given.rehearsal) / f"gpu-{card}.jsonl", 60 * given.minutes, small=not gpu
    )
    if not gpu:
        torch.set_num_threads(1)  # more of them wait for each other at such sizes
        print(
            "a rehearsal at tiny sizes, without a CUDA GPU with interpreted kernels: its numbers mean nothing"
        )
    print(f"results: {check.file}; cases that stand there already are skipped", flush=True)
    with check.file.with_suffix(".hang.txt").open("w", encoding="utf-8") as hang:
        faulthandler.dump_traceback_later(60 * given.minutes + 30, exit=True, file=hang)
        for name, part in PARTS.items():
            if not given.only or name in given.only.split(","):
                check.run(name, part)
        faulthandler.cancel_dump_traceback_later()
    check.file.with_suffix(".hang.txt").unlink()
    if check.skipped:
        print(f"left out: {', '.join(check.skipped)}; the next run goes on there")
    print(f"failed: {', '.join(check.failed)}" if check.failed else "nothing failed")
    return bool(check.failed)


if __name__ == "__main__":
    sys.exit(main())
