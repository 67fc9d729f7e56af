"""What a round does with its draft trees between the forwards, in C++: for batches on a CPU (`native/tree.h`).

At batch 1 such a step is arithmetic on a dozen numbers, and a torch operation takes longer than all of it. Each
function here equals the torch code of the one that calls it, bit for bit; B requests, N nodes, C candidates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.native import unavailable_reason
from fledge.native.build import library

_INT64, _FLOAT = torch.int64, torch.float32


def runs_here(tensor: Tensor) -> bool:
    """Whether this tensor's batch can be worked on natively."""
    return tensor.is_cpu and _available()


def accept(
    tree: DraftTree, chosen: Tensor, width: int, speculates: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """See `round.accept`: how many each request emits [B], the path and what its nodes chose [B, width]."""
    requests, nodes = chosen.shape
    emits = torch.empty(requests, dtype=_INT64)
    path, emitted = torch.empty(requests, width, dtype=_INT64), torch.empty(requests, width, dtype=_INT64)
    inputs = (tree.token_ids, tree.parents, tree.depths, chosen, speculates)
    _call("fledge_accept", (*inputs, emits, path, emitted), requests, nodes, width)
    return emits, path, emitted


def select(
    token_ids: Tensor,
    scores: Tensor,
    depths: Tensor,
    expanded: Tensor,
    own: Tensor | None,
    counts: Tensor | None,
    *,
    topk: int,
    nodes: int,
) -> DraftTree:
    """See `TreeGrowth.select`: token_ids [B, 1 + C], scores [B, C], depths [1 + C], expanded [B, E].

    `own` [B, M] are the parents of the last M candidates; the others are `topk` to each of those expanded.
    """
    requests, candidates = scores.shape
    tree = DraftTree(*(torch.empty(requests, nodes, dtype=kind) for kind in (*[_INT64] * 4, _FLOAT)))
    _call(
        "fledge_select",
        (token_ids, scores, depths, expanded, own, counts, *tree),
        requests,
        candidates,
        expanded.shape[1],
        0 if own is None else own.shape[1],
        topk,
        nodes,
    )
    return tree


@functools.cache
def _available() -> bool:
    return not unavailable_reason()


def _call(name: str, tensors: tuple[Tensor | None, ...], *sizes: int) -> None:
    """Call a kernel that takes pointers, then sizes. What it writes to is contiguous."""
    held = [None if t is None else t.contiguous() for t in tensors]
    _kernel(name, len(held), len(sizes))(*(None if t is None else t.data_ptr() for t in held), *sizes)


@functools.cache
def _kernel(name: str, pointers: int, sizes: int) -> Callable[..., None]:
    found = getattr(library(), name)
    found.argtypes = [c_void_p] * pointers + [c_int64] * sizes
    found.restype = None
    kernel: Callable[..., None] = found
    return kernel
