"""The trainer's checkpoint: one atomically written file from which training resumes bit for bit.

It is hashed and written in a thread, from a copy of the state, while training goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fledge.base.errors import StorageError
from fledge.base.storage import exists, join, read_bytes, write_atomic

CHECKPOINT_NAME, METRICS_NAME = "checkpoint.safetensors", "metrics.jsonl"
_LARGE = 2 * 10**9  # bytes of a checkpoint that is written every ten minutes instead of every minute


@dataclass(frozen=True)
class Checkpoint:
    """The training state. The data order follows from seed and step, so no random state is saved."""

    step: int  # updates done
    total: int  # updates of the whole run, as decided at its start
    seconds: float  # of training so far
    metrics: list[dict[str, Any]]  # lines of metrics.jsonl so far
    tensors: dict[str, Tensor]  # float32, of the optimiser, masters included

    def save(self, url: str) -> None:
        """Write the metrics, then the checkpoint, so that a finished run never lacks its last metrics."""
        self.write_metrics(url)
        facts = {"step": self.step, "total": self.total, "seconds": self.seconds, "metrics": self.metrics}
        header = json.dumps(facts)
        metadata = {"fledge": header, "sha256": _checksum(header, self.tensors)}
        write_atomic(join(url, CHECKPOINT_NAME), *_safetensors(self.tensors, metadata))

    def write_metrics(self, url: str) -> None:
        """Write metrics.jsonl."""
        lines = "".join(json.dumps(row) + "\n" for row in self.metrics)
        write_atomic(join(url, METRICS_NAME), lines.encode())

    @classmethod
    def load(cls, url: str) -> Checkpoint | None:
        """The checkpoint in a folder, or None."""
        place = join(url, CHECKPOINT_NAME)
        if not exists(place):
            return None
        data = read_bytes(place)
        try:
            tensors = safetensors.torch.load(data)
            size = int.from_bytes(data[:8], "little")
            metadata = json.loads(data[8 : 8 + size])["__metadata__"]
            if _checksum(metadata["fledge"], tensors) != metadata["sha256"]:
                raise ValueError("its checksum differs")
            facts = json.loads(metadata["fledge"])
            return cls(facts["step"], facts["total"], facts["seconds"], facts["metrics"], tensors)
        except Exception as error:  # safetensors raises its own type for a truncated or foreign file
            raise StorageError(f"{place} is damaged ({error}); delete it to train from the start") from error


class CheckpointWriter:
    """Writes checkpoints in a thread, one at a time. An error there is raised by the next call."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fledge-checkpoint")
        self._writing: Future[None] | None = None

    def write(self, checkpoint: Checkpoint, url: str) -> None:
        """Start to write, once the one before is on disk."""
        self.wait()
        self._writing = self._thread.submit(checkpoint.save, url)

    def wait(self) -> None:
        """Wait until nothing is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait, then end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def seconds_between(size: int) -> float:
    """Time between two checkpoints of `size` bytes where the recipe names none."""
    return 600.0 if size >= _LARGE else 60.0


def _safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """The parts of a safetensors file of float32 tensors. Their data isn't copied, unlike by the library, which also
    keeps other threads waiting while it does."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *map(_raw, tensors.values())]


def _checksum(facts: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(_raw(tensor))
    return digest.hexdigest()


def _raw(tensor: Tensor) -> memoryview:
    return memoryview(tensor.flatten().view(torch.uint8).numpy())  # type: ignore[arg-type]  # as in features/shard.py
