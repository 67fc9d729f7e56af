"""Several processes, one head: each takes a share of every batch, and the gradients are summed over all of them.

    torchrun --nproc-per-node 2 -m fledge train my.yaml --run-dir runs/my-llm

Sums are weighted as if one process had the whole batch, so losses equal those of one process up to the order of
additions. The float32 masters are whole in every process, or sharded with FSDP2:

    train.parallel    masters, optimiser state     gradients         compute copies, after every update
    ddp               whole in every process       all-reduce        cast from the masters
    fsdp              one shard per process        reduce-scatter    all-gather of the shards, cast before

All weights are one flat buffer of N numbers, and a shard is an even slice of it, regardless of the weights' shapes.

Torch's own FSDP2 (`fully_shard`) shards the masters and gathers them; all other communication is a DTensor that changes
its placement. FSDP2's autograd hooks aren't used: the backward functions here add to float32 gradients in place
(functions.py), where the hooks would wait for gradients in the compute dtype.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fledge.features import SampleInfo

T = TypeVar("T")
Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Team:
    """The processes that train together, and this one's rank among them."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls, device: torch.device) -> Team:
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
        """Whether this process writes files and shows progress."""
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
        """Whether `flag` is true in any process."""
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

    def __init__(self, masters: Tensor, team: Team = Team()) -> None:
        self.team, self.shard, self.span = team, masters, slice(0, masters.numel())

    def reduce(self, grad: Tensor) -> Tensor:
        """Sum the gradients [N] over all processes; returns this process' shard [P]. `grad` is overwritten."""
        return self.team.sum_(grad)

    def norm(self, grad: Tensor) -> float:
        """The norm of the whole gradient, from its shards [P]."""
        return float(grad.norm())

    def all_gather(self, shard: Tensor) -> Tensor:
        """The whole buffer [N] from all processes' shards [P]; may be `shard` itself."""
        return shard

    def gather_to_leader(self, shard: Tensor) -> Tensor:
        """A copy of `all_gather` in the leader's host memory; empty in the other processes."""
        return shard.to("cpu", copy=True) if self.team.leads else shard.new_empty(0)

    def cast_into(self, compute: Tensor, shard: Tensor | None = None) -> None:
        """Cast the masters (or another buffer, given by its shards) into every process' `compute` [N]."""
        compute.copy_(self.shard if shard is None else shard)

    def computes(self, turn: int) -> bool:
        """Whether this process does whole-matrix work number `turn` and broadcasts the result."""
        return True

    def broadcast(self, tensor: Tensor, turn: int) -> None:
        """Overwrite `tensor` with that of the process that `computes` this turn."""


class ShardedMasters(Masters):
    """Masters sharded over the processes by FSDP2; `dtype` is that of the compute copies."""

    def __init__(self, masters: Tensor, team: Team, dtype: torch.dtype) -> None:
        self.team = team
        self._mesh = init_device_mesh(masters.device.type, (team.size,))
        self._size = masters.numel()
        self._module = _Flat(masters)
        policy = MixedPrecisionPolicy(param_dtype=dtype)
        self._sharded: FSDPModule = fully_shard(self._module, mesh=self._mesh, mp_policy=policy)
        split = self._module.flat
        assert isinstance(split, DTensor)
        self.shard = split.to_local()
        start = min(team.rank * -(-self._size // team.size), self._size)
        self.span = slice(start, start + self.shard.numel())

    def reduce(self, grad: Tensor) -> Tensor:
        shares = DTensor.from_local(grad, self._mesh, [Partial()])
        return _local(shares.redistribute(placements=[Shard(0)]))

    def norm(self, grad: Tensor) -> float:
        return float(self.team.sum_(grad.norm().square()).sqrt())

    def all_gather(self, shard: Tensor) -> Tensor:
        size = torch.Size([self._size])
        shards = DTensor.from_local(shard, self._mesh, [Shard(0)], shape=size, stride=(1,))
        return _local(shards.redistribute(placements=[Replicate()]))

    def gather_to_leader(self, shard: Tensor) -> Tensor:
        full = self.all_gather(shard)
        return full.cpu() if self.team.leads else full.new_empty(0)

    def cast_into(self, compute: Tensor, shard: Tensor | None = None) -> None:
        if shard is not None:
            compute.copy_(self.all_gather(shard.to(compute.dtype)))
            return
        self._sharded.unshard()
        compute.copy_(self._module.flat)
        self._sharded.reshard()

    def computes(self, turn: int) -> bool:
        return turn % self.team.size == self.team.rank

    def broadcast(self, tensor: Tensor, turn: int) -> None:
        dist.broadcast(tensor, turn % self.team.size)


class _Flat(nn.Module):
    """A module with the flat buffer as its only parameter, for fully_shard."""

    def __init__(self, flat: Tensor) -> None:
        super().__init__()
        self.flat = nn.Parameter(flat, requires_grad=False)


def _local(tensor: DTensor) -> Tensor:
    local: Tensor = tensor.to_local()
    return local


def make_masters(masters: Tensor, team: Team, parallel: Parallel, dtype: torch.dtype) -> Masters:
    """Masters [N], the same in all processes of the team, whole or sharded according to `parallel`."""
    if parallel == "fsdp" and team.size > 1:
        return ShardedMasters(masters, team, dtype)
    return Masters(masters, team)
