"""Several processes, one head: each takes a share of every batch, gradients are summed over all (masters.py).

    torchrun --nproc-per-node 2 -m fledge train my.yaml --run-dir runs/my-llm

Sums are weighted as if one process had the whole batch, so the losses are those of one process but for the order of
additions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fledge.features import SampleInfo

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes that train together, and which of them this one is."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls, device: torch.device) -> Team:
        """What torchrun started; one process alone without it."""
        if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
            return cls()
        if not dist.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(device)
            # Flags and counts are summed on the host also where gradients are on a GPU.
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, infos: Sequence[SampleInfo]) -> list[SampleInfo]:
        """This process' part of a batch: neighbours, about as many tokens as the others'."""
        if self.size == 1:
            return list(infos)
        total, before, mine = sum(info.tokens for info in infos), 0, []
        for info in infos:
            if (before + info.tokens / 2) * self.size // max(1, total) == self.rank:
                mine.append(info)
            before += info.tokens
        return mine

    def sum_(self, tensor: Tensor) -> Tensor:
        """The tensor, summed over all processes in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return flag if self.size == 1 else bool(self.sum_(torch.tensor([float(flag)])))

    def gather(self, value: T) -> list[T]:
        """Every process' value, in every process."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Go on when all are here."""
        if self.size > 1:
            dist.barrier()
