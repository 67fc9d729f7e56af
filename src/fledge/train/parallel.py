"""Several processes, one head: each takes a share of every batch, and the gradients are summed over all of them.

    torchrun --nproc-per-node 2 -m fledge train my.yaml --run-dir runs/my-llm

Sums are weighted as if one process had the whole batch, so losses equal those of one process up to the order of
additions. The float32 masters are whole in every process, or sharded with FSDP2 (sharded.py):

    train.parallel    masters, optimiser state     gradients         compute copies, after every update
    ddp               whole in every process       all-reduce        cast from the masters
    fsdp              one shard per process        reduce-scatter    all-gather of the shards, cast before

All weights are one flat buffer of N numbers, and a shard is an even slice of it, regardless of the weights' shapes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fledge.features import SampleInfo

T = TypeVar("T")
Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, and this one's rank among them."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls, device: torch.device) -> Ranks:
        """The processes started by torchrun; without it, only this one."""
        if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
            return cls()
        if not dist.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(device)
            # Flags and counts are summed on the host even if gradients are on a GPU.
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """True if this process writes files and shows progress."""
        return self.rank == 0

    def share(self, infos: Sequence[SampleInfo]) -> list[SampleInfo]:
        """This process' part of a batch: consecutive conversations with about as many tokens as the others."""
        if self.size == 1:
            return list(infos)
        total, before, mine = sum(info.tokens for info in infos), 0, []
        for info in infos:
            if (before + info.tokens / 2) * self.size // max(1, total) == self.rank:
                mine.append(info)
            before += info.tokens
        return mine

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum the tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """True if `flag` is true in any process."""
        return flag if self.size == 1 else bool(self.sum_(torch.tensor([float(flag)])))

    def gather(self, value: T) -> list[T]:
        """Every process' value, in every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


class Masters:
    """Unsharded masters: every process holds all of them and makes the same update.

    The methods communicate between processes, so all processes must call them in the same order. Shapes: [N] is the
    flat buffer, [P] this process' shard of it; here they are the same.
    """

    shard: Tensor  # float32 [P], what this process updates
    span: slice  # its place in the flat buffer

    def __init__(self, masters: Tensor, ranks: Ranks = Ranks()) -> None:
        self.ranks, self.shard, self.span = ranks, masters, slice(0, masters.numel())

    def reduce(self, grad: Tensor) -> Tensor:
        """Sum the gradients [N] over all processes; returns this process' shard [P]. `grad` is overwritten."""
        return self.ranks.sum_(grad)

    def norm(self, grad: Tensor) -> float:
        """The norm of the whole gradient, from its shards [P]."""
        return float(grad.norm())

    def all_gather(self, shard: Tensor) -> Tensor:
        """The whole buffer [N] from all processes' shards [P]; may be `shard` itself."""
        return shard

    def gather_to_leader(self, shard: Tensor) -> Tensor:
        """A copy of `all_gather` in the leader's host memory; empty in the other processes."""
        return shard.to("cpu", copy=True) if self.ranks.leads else shard.new_empty(0)

    def cast_into(self, compute: Tensor) -> None:
        """Cast the masters into every process' `compute` [N]."""
        compute.copy_(self.shard)

    def computes(self, turn: int) -> bool:
        """True if this process does whole-matrix work number `turn` and broadcasts the result."""
        return True

    def broadcast(self, tensor: Tensor, turn: int) -> None:
        """Overwrite `tensor` with that of the process that `computes` this turn."""
