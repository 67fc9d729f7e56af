"""Where the float32 masters are when several processes train: whole in each of them, or split with FSDP2.

    train.parallel    masters, optimiser's state    gradients         compute copies, after every update
    ddp               whole in every process        all-reduce        cast from the masters
    fsdp              a part in every process       reduce-scatter    all-gather of the parts, cast before

All weights are one flat buffer, and so is a part: even, whatever the weights' shapes.

torch's own FSDP2 (`fully_shard`) splits the masters and gathers them; all else that crosses processes is a DTensor that
changes its placement. Only FSDP2's hooks into autograd have nothing to do: backward functions here add to float32
gradients in place (functions.py), where the hooks would wait for gradients in the type of the products.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fledge.train.parallel import Team

Parallel = Literal["ddp", "fsdp"]


class Masters:
    """The masters of one process, whole in it, and what it does together with others: all processes must call alike.

    As they are here, processes that train together all make the same update.
    """

    mine: Tensor  # float32 [P], the part of the flat buffer [N] that this process updates
    part: slice  # its place in the buffer

    def __init__(self, masters: Tensor, team: Team = Team()) -> None:  # noqa: B008 - immutable
        self.team, self.mine, self.part = team, masters, slice(0, masters.numel())

    def summed(self, grad: Tensor) -> Tensor:
        """This process' part [P] of the gradients [N], summed over all processes; `grad` is used up."""
        return self.team.sum_(grad)

    def norm(self, grad: Tensor) -> float:
        """Of the whole, from parts [P]."""
        return float(grad.norm())

    def whole(self, part: Tensor) -> Tensor:
        """All processes' parts [P] of something as one [N]; it may be `part` itself."""
        return part

    def collected(self, part: Tensor) -> Tensor:
        """The same for the leading process alone, in memory of the host where it is a copy; empty in the others."""
        return part

    def publish(self, compute: Tensor, part: Tensor | None = None) -> None:
        """Cast the masters (or what is given in parts) into every process' `compute` [N]."""
        compute.copy_(self.mine if part is None else part)

    def takes(self, turn: int) -> bool:
        """Whether this process does piece number `turn` of work on whole tensors."""
        return True

    def hand_round(self, tensor: Tensor, turn: int) -> None:
        """Overwrite `tensor` with that of the process which took this turn."""


class ShardedMasters(Masters):
    """Masters split over the processes by FSDP2; `dtype` is that of the compute copies."""

    def __init__(self, masters: Tensor, team: Team, dtype: torch.dtype) -> None:
        self.team = team
        self._mesh = init_device_mesh(masters.device.type, (team.size,))
        self._size = masters.numel()
        self._module = _Flat(masters)
        policy = MixedPrecisionPolicy(param_dtype=dtype)
        self._sharded: FSDPModule = fully_shard(self._module, mesh=self._mesh, mp_policy=policy)
        split = self._module.flat
        assert isinstance(split, DTensor)
        self.mine = split.to_local()
        start = team.rank * -(-self._size // team.size)
        self.part = slice(min(start, self._size), min(start, self._size) + self.mine.numel())

    def summed(self, grad: Tensor) -> Tensor:
        shares = DTensor.from_local(grad, self._mesh, [Partial()])
        return _local(shares.redistribute(placements=[Shard(0)]))

    def norm(self, grad: Tensor) -> float:
        return float(self.team.sum_(grad.norm().square()).sqrt())

    def whole(self, part: Tensor) -> Tensor:
        size = torch.Size([self._size])
        parts = DTensor.from_local(part, self._mesh, [Shard(0)], shape=size, stride=(1,))
        return _local(parts.redistribute(placements=[Replicate()]))

    def collected(self, part: Tensor) -> Tensor:
        whole = self.whole(part)
        return whole.cpu() if self.team.leads else whole.new_empty(0)

    def publish(self, compute: Tensor, part: Tensor | None = None) -> None:
        if part is not None:
            compute.copy_(self.whole(part.to(compute.dtype)))
            return
        self._sharded.unshard()
        compute.copy_(self._module.flat)
        self._sharded.reshard()

    def takes(self, turn: int) -> bool:
        return turn % self.team.size == self.team.rank

    def hand_round(self, tensor: Tensor, turn: int) -> None:
        dist.broadcast(tensor, turn % self.team.size)


class _Flat(nn.Module):
    """What fully_shard takes: a module with the flat buffer as its only parameter."""

    def __init__(self, flat: Tensor) -> None:
        super().__init__()
        self.flat = nn.Parameter(flat, requires_grad=False)


def _local(tensor: DTensor) -> Tensor:
    local: Tensor = tensor.to_local()
    return local


def spread(masters: Tensor, team: Team, parallel: Parallel, dtype: torch.dtype) -> Masters:
    """Masters [N], the same in all processes of the team, as this process keeps them."""
    if parallel == "fsdp" and team.size > 1:
        return ShardedMasters(masters, team, dtype)
    return Masters(masters, team)
