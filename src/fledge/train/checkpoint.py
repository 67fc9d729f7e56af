"""The trainer's checkpoint: one file, written atomically, from which training goes on bit for bit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import safetensors.torch
from torch import Tensor

from fledge.errors import StorageError
from fledge.storage import exists, join, read_bytes, write_atomic

CHECKPOINT_NAME, METRICS_NAME = "checkpoint.safetensors", "metrics.jsonl"


@dataclass(frozen=True)
class Checkpoint:
    """Where training stands. The order of data follows from seed and step, so no random state is kept."""

    step: int  # updates done
    total: int  # updates of the whole run, as decided at its start
    seconds: float  # of training so far
    metrics: list[dict[str, Any]]  # lines of metrics.jsonl so far
    tensors: dict[str, Tensor]  # of the optimiser, masters included

    def save(self, url: str) -> None:
        """Write the checkpoint, then the metrics that belong to it."""
        facts = {"step": self.step, "total": self.total, "seconds": self.seconds, "metrics": self.metrics}
        data = safetensors.torch.save(self.tensors, metadata={"fledge": json.dumps(facts)})
        write_atomic(join(url, CHECKPOINT_NAME), data)
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
            facts = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["fledge"])
            return cls(facts["step"], facts["total"], facts["seconds"], facts["metrics"], tensors)
        except Exception as error:  # safetensors raises its own type for a truncated or foreign file
            raise StorageError(f"{place} is damaged ({error}); delete it to train from the start") from error
