"""The float32 masters, sharded over the processes by FSDP2; parallel.py says what that means for training.

Torch's own FSDP2 (`fully_shard`) shards the masters and gathers them; all other communication is a DTensor that changes
its placement. FSDP2's autograd hooks aren't used: the backward functions here add to float32 gradients in place
(functions.py), where the hooks would wait for gradients in the compute dtype.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fledge.train.parallel import Masters, Ranks


class ShardedMasters(Masters):
    """Masters sharded over the processes by FSDP2; `dtype` is that of the compute copies."""

    def __init__(self, masters: Tensor, ranks: Ranks, dtype: torch.dtype) -> None:
        self.ranks = ranks
        self._mesh = init_device_mesh(masters.device.type, (ranks.size,))
        self._size = masters.numel()
        self._module = _Flat(masters)
        policy = MixedPrecisionPolicy(param_dtype=dtype)
        self._sharded: FSDPModule = fully_shard(self._module, mesh=self._mesh, mp_policy=policy)
        split = self._module.flat
        assert isinstance(split, DTensor)
        self.shard = split.to_local()
        start = min(ranks.rank * -(-self._size // ranks.size), self._size)
        self.span = slice(start, start + self.shard.numel())

    def reduce(self, grad: Tensor) -> Tensor:
        shares = DTensor.from_local(grad, self._mesh, [Partial()])
        return _local(shares.redistribute(placements=[Shard(0)]))

    def norm(self, grad: Tensor) -> float:
        return float(self.ranks.sum_(grad.norm().square()).sqrt())

    def all_gather(self, shard: Tensor) -> Tensor:
        size = torch.Size([self._size])
        shards = DTensor.from_local(shard, self._mesh, [Shard(0)], shape=size, stride=(1,))
        return _local(shards.redistribute(placements=[Replicate()]))

    def gather_to_leader(self, shard: Tensor) -> Tensor:
        full = self.all_gather(shard)
        return full.cpu() if self.ranks.leads else full.new_empty(0)

    def cast_into(self, compute: Tensor) -> None:
        self._sharded.unshard()
        compute.copy_(self._module.flat)
        self._sharded.reshard()

    def computes(self, turn: int) -> bool:
        return turn % self.ranks.size == self.ranks.rank

    def broadcast(self, tensor: Tensor, turn: int) -> None:
        dist.broadcast(tensor, turn % self.ranks.size)


class _Flat(nn.Module):
    """A module with the flat buffer as its only parameter, for fully_shard."""

    def __init__(self, flat: Tensor) -> None:
        super().__init__()
        self.flat = nn.Parameter(flat, requires_grad=False)


def _local(tensor: DTensor) -> Tensor:
    local: Tensor = tensor.to_local()
    return local
