"""The head's weights while they are trained: float32 masters, compute copies, float32 gradients, all in flat buffers.

A matrix whose input is not wider than its output is kept transposed, [in, out]. Its gradient is then x^T @ dy, and of
the two operands the narrower one is transposed in memory first: twice as fast as letting the product do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fledge.train.elementwise import accumulate, transpose
from fledge.train.workspace import Workspace


@dataclass
class Weight:
    """One weight: views into the flat buffers."""

    name: str
    master: Tensor  # float32
    compute: Tensor  # the type of the products
    grad: Tensor  # float32; backward functions add to it directly
    transposed: bool  # a matrix stored as [in, out]

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
        turned = workspace.take("turned", (left.shape[1], left.shape[0]), left.dtype, left.device)
        transpose(left, turned)
        shape = (left.shape[1], right.shape[1])
        product = torch.mm(turned, right, out=workspace.take("gradient", shape, left.dtype, left.device))
        accumulate(self.grad, product, scale)


class TrainableWeights:
    """All weights in flat buffers: matrices first, then the norms, which are not decayed."""

    def __init__(self, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
        """`tensors` are matrices [out, in] and vectors, by name; their order is kept."""
        matrices = {name: t for name, t in tensors.items() if t.dim() == 2}
        vectors = {name: t for name, t in tensors.items() if t.dim() == 1}
        self.matrix_size = sum(t.numel() for t in matrices.values())
        size = self.matrix_size + sum(t.numel() for t in vectors.values())
        self.master = torch.empty(size, dtype=torch.float32, device=device)
        self.compute = torch.empty(size, dtype=dtype, device=device)
        self.grad = torch.zeros(size, dtype=torch.float32, device=device)
        self.weights: dict[str, Weight] = {}
        start = 0
        for name, tensor in (matrices | vectors).items():
            transposed = tensor.dim() == 2 and tensor.shape[1] <= tensor.shape[0]
            stored = tensor.t() if transposed else tensor
            span = slice(start, start + tensor.numel())
            master, compute, grad = (
                flat[span].view(stored.shape) for flat in (self.master, self.compute, self.grad)
            )
            master.copy_(stored)
            self.weights[name] = Weight(name, master, compute, grad, transposed)
            start = span.stop
        self.refresh()

    def __getitem__(self, name: str) -> Weight:
        return self.weights[name]

    def refresh(self) -> None:
        """Bring the compute copies up to the masters."""
        self.compute.copy_(self.master)

    def tensors(self, flat: Tensor | None = None) -> dict[str, Tensor]:
        """Float32 copies by name, [out, in] again, from the masters or from another flat buffer of their layout."""
        source, found, start = self.master if flat is None else flat, {}, 0
        for name, weight in self.weights.items():
            part = source[start : start + weight.master.numel()].view(weight.master.shape)
            found[name] = (part.t() if weight.transposed else part).contiguous().clone()
            start += part.numel()
        return found
