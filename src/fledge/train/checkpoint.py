"""The trainer's checkpoint: one atomically written file from which training resumes bit for bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fledge.base.errors import StorageError
from fledge.base.storage import exists, join, read_bytes, write_atomic

CHECKPOINT_NAME, METRICS_NAME = "checkpoint.safetensors", "metrics.jsonl"


@dataclass(frozen=True)
class Checkpoint:
    """The training state. The data order follows from seed and step, so no random state is saved."""

    step: int  # updates done
    total: int  # updates of the whole run, as decided at its start
    seconds: float  # of training so far
    metrics: list[dict[str, Any]]  # lines of metrics.jsonl so far
    tensors: dict[str, Tensor]  # of the optimiser, masters included

    def save(self, url: str) -> None:
        """Write the metrics, then the checkpoint, so that a finished run never lacks its last metrics."""
        self.write_metrics(url)
        facts = {"step": self.step, "total": self.total, "seconds": self.seconds, "metrics": self.metrics}
        header = json.dumps(facts)
        metadata = {"fledge": header, "sha256": _checksum(header, self.tensors)}
        data = safetensors.torch.save(self.tensors, metadata=metadata)
        write_atomic(join(url, CHECKPOINT_NAME), data)

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


def _checksum(facts: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
