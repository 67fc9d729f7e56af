"""The head's weights during training: float32 masters, compute copies, float32 gradients, all in flat buffers.

Every process holds all compute copies and gradients; the masters may be sharded (parallel.py).

A matrix is stored as [in, out] if its input is not wider than its output, else as [out, in]. Its gradient is then
x^T @ dy or dy^T @ x, with the narrower operand transposed. Transposing it in memory first is twice as fast as letting
the product do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fledge.train.kernels import Kernels
from fledge.train.kernels_compiled import kernels_for
from fledge.train.parallel import Masters, Parallel, Ranks
from fledge.train.workspace import Workspace


@dataclass
class Weight:
    """One weight: views into the flat buffers."""

    name: str
    span: slice  # its range in them
    compute: (
        Tensor  # in the compute dtype; requires a gradient, so that autograd records what it is an input of
    )
    grad: Tensor  # float32; backward functions add to it directly
    transposed: bool  # a matrix stored as [in, out]
    kernels: Kernels

    def multiply(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """x [R, in] -> [R, out], plus `add` [R, out]."""
        matrix = self.compute if self.transposed else self.compute.t()
        return torch.mm(x, matrix) if add is None else torch.addmm(add, x, matrix)

    def multiply_back(self, dy: Tensor, out: Tensor | None = None) -> Tensor:
        """dy [R, out] -> gradient of the input [R, in]."""
        matrix = self.compute.t() if self.transposed else self.compute
        return torch.mm(dy, matrix) if out is None else torch.mm(dy, matrix, out=out)

    def add_gradient(self, x: Tensor, dy: Tensor, workspace: Workspace, scale: float = 1.0) -> None:
        """Add `scale` times the gradient of y = x W, from x [R, in] and dy [R, out]."""
        left, right = (x, dy) if self.transposed else (dy, x)
        transposed = workspace.take("transposed", (left.shape[1], left.shape[0]), left.dtype, left.device)
        self.kernels.transpose(left, transposed)
        shape = (left.shape[1], right.shape[1])
        product = torch.mm(transposed, right, out=workspace.take("gradient", shape, left.dtype, left.device))
        self.kernels.accumulate(self.grad, product, scale)


class TrainableWeights:
    """All weights in flat buffers: matrices first, then the norms, which aren't decayed."""

    def __init__(self, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
        """`tensors` are matrices [out, in] and vectors, by name; their order is kept."""
        matrices = {name: t for name, t in tensors.items() if t.dim() == 2}
        vectors = {name: t for name, t in tensors.items() if t.dim() == 1}
        self.matrix_size = sum(t.numel() for t in matrices.values())
        size = self.matrix_size + sum(t.numel() for t in vectors.values())
        flat = torch.empty(size, dtype=torch.float32, device=device)
        self.compute = torch.empty(size, dtype=dtype, device=device)
        self.grad = torch.zeros(size, dtype=torch.float32, device=device)
        self.kernels = kernels_for(dtype, device)
        self.weights: dict[str, Weight] = {}
        start = 0
        for name, tensor in (matrices | vectors).items():
            transposed = tensor.dim() == 2 and tensor.shape[1] <= tensor.shape[0]
            stored = tensor.t() if transposed else tensor
            span = slice(start, start + tensor.numel())
            flat[span].view(stored.shape).copy_(stored)
            compute, grad = (buffer[span].view(stored.shape) for buffer in (self.compute, self.grad))
            compute.requires_grad_()
            self.weights[name] = Weight(name, span, compute, grad, transposed, self.kernels)
            start = span.stop
        self.masters = Masters(flat)
        self.refresh()

    def __getitem__(self, name: str) -> Weight:
        return self.weights[name]

    def distribute(self, ranks: Ranks, parallel: Parallel) -> None:
        """Train together with other processes from now on."""
        self.masters = _masters(self.masters.shard, ranks, parallel, self.compute.dtype)

    def in_shard(self, weight: Weight) -> slice:
        """A weight's range in this process' shard of the masters; empty if the shard holds none of it."""
        held = self.masters.span
        start, stop = (min(max(end, held.start), held.stop) for end in (weight.span.start, weight.span.stop))
        return slice(start - held.start, stop - held.start)

    def refresh(self) -> None:
        """Set the compute copies from the masters."""
        self.masters.cast_into(self.compute)

    def tensors(self, shard: Tensor | None = None) -> dict[str, Tensor]:
        """Float32 copies by name, as [out, in], of the masters or of another buffer sharded like them."""
        flat, tensors = self.masters.all_gather(self.masters.shard if shard is None else shard), {}
        for name, weight in self.weights.items():
            stored = flat[weight.span].view(weight.grad.shape)
            tensors[name] = (stored.t() if weight.transposed else stored).contiguous().clone()
        return tensors


def _masters(masters: Tensor, ranks: Ranks, parallel: Parallel, dtype: torch.dtype) -> Masters:
    """Masters [N], the same in all ranks, whole or sharded according to `parallel`."""
    if parallel == "fsdp" and ranks.size > 1:
        from fledge.train.sharded import ShardedMasters  # FSDP2 takes 0.8 s and 50 MB to import

        return ShardedMasters(masters, ranks, dtype)
    return Masters(masters, ranks)
