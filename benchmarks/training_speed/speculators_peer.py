"""Our side of speculators_loop.py: hands over head and batches, asks for steps, and keeps the process stopped between.

with started(python, target, head, options, samples, "sdpa") as peer:
    seconds, loss = peer.step(0)
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from benchmarks.expanded import expanded
from fledge.features import FeatureSample
from fledge.heads import Head
from fledge.heads.forms import form_tensors
from fledge.target import Target
from fledge.train import TrainOptions

_SCRIPT = Path(__file__).with_name("speculators_loop.py")
_ENVIRONMENT = {
    "TQDM_DISABLE": "1",
    "MALLOC_MMAP_MAX_": "0",  # what `freed_memory_is_kept` does for the others
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
}


class Peer:
    """speculators' process; it runs only while it is asked."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self._process, self._log = process, log
        _, self.version = self._answer()

    def step(self, index: int) -> tuple[float, float]:
        """Train on batch `index`: its seconds and its loss."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(f"step {index}\n")
        self._process.stdin.flush()
        seconds, loss = self._answer()
        return float(seconds), float(loss)

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"speculators' process ended:\n{self._log.read()[-3000:]}")
        self._process.send_signal(signal.SIGSTOP)  # its threads may spin for a while after a step
        return line.split()


@contextmanager
def started(
    python: str,
    target: Target,
    head: Head,
    options: TrainOptions,
    batches: Sequence[Sequence[FeatureSample]],
    attention: str,
) -> Iterator[Peer]:
    """The process with the same head, batches and number of threads."""
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w+", encoding="utf-8") as log:
        file = Path(folder) / "given.pt"
        settings = {
            "target": str(expanded(str(target.place))),
            "threads": torch.get_num_threads(),
            "attention": attention,
            "ttt_steps": options.ttt_steps,
            "step_decay": options.step_decay,
            "learning_rate": options.learning_rate,
        }
        norm = target.weights.norm
        laid_out = [[as_speculators(sample, norm) for sample in samples] for samples in batches]
        tensors = form_tensors(head, "speculators", torch.float32)
        torch.save({"settings": settings, "head": tensors, "batches": laid_out}, file)
        process = subprocess.Popen(
            [python, "-P", str(_SCRIPT), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | _ENVIRONMENT,
        )
        try:
            yield Peer(process, log)
        finally:
            process.kill()  # ends a stopped one too
            process.communicate()


def as_speculators(sample: FeatureSample, norm: Tensor) -> dict[str, Tensor]:
    """One conversation as its trainer reads them; `norm` [Ht] is the weight of the target's last norm.

    It computes the teacher from hidden states before that norm. Ours lie behind it: divided by its weight they come
    out again the same. And its mask marks the token fed, ours the token predicted, which is the next one.
    """
    before = torch.where(norm == 0, 0, sample.hidden.float() / norm.float())
    predicts = torch.cat((sample.loss_mask[1:], sample.loss_mask.new_zeros(1)))
    return {
        "input_ids": sample.token_ids.long(),
        "loss_mask": predicts.bool(),
        "hidden_states": sample.features,
        "verifier_last_hidden_states": before.to(sample.hidden.dtype),
    }
