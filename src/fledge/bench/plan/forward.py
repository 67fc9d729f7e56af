"""Seconds of a forward: reading and computing overlapped (a roofline with a round knee), plus the cost of launches.

seconds  ^                      __/  computing: rows * 2 * weights / FLOP/s
         |            _______---
         |-----'''                     reading: weights / bandwidth (+ each request's KV)
         +------------------------> rows

round = (depth - 1) draft steps + one verify + one draft-extend + host time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fledge.bench.plan.shape import HeadShape, ModelShape
from fledge.engine import TreeShape

_KV_BYTES = 2  # bf16
# Reading and computing overlap, but not fully: near the knee a forward takes longer than either. This p-norm fits
# verifies of 2 to 64 rows on two generations of CPUs; the textbook roofline has an infinite p.
_KNEE = 3.0


@dataclass(frozen=True)
class Device:
    """All devices together, at the speed that kernels reach."""

    bandwidth: float  # bytes per second
    flops: float  # per second
    weight_bytes: float  # per weight
    overhead: float  # seconds per layer of a forward: launches, and between devices the exchange of results
    head_weight_bytes: float = 2.0  # per weight of a head
    head_overhead: float = 0.0  # seconds of a head's forward besides its layer: top-k, building its batch
    host: float = 0.0  # seconds of a round, plain or not, besides forwards

    def at_best(self, read_bytes: float, flops: float) -> float:
        """Seconds of reading and computing, overlapped."""
        reading, computing = read_bytes / self.bandwidth, flops / self.flops
        return (reading**_KNEE + computing**_KNEE) ** (1 / _KNEE)


def forward_seconds(model: ModelShape, device: Device, requests: int, rows_each: int, context: int) -> float:
    """One forward of the target over `rows_each` tokens per request, each after a prefix of `context` tokens."""
    rows, seen = requests * rows_each, model.seen(context)
    read = model.weights_read(rows) * device.weight_bytes + requests * seen * model.kv_width * _KV_BYTES
    flops = rows * (2 * model.weights_per_token + seen * model.attention_flops)
    return device.at_best(read, flops) + model.layers * device.overhead


def head_seconds(head: HeadShape, device: Device, rows: int, *, features: bool) -> float:
    """One forward of the head; `features`: including the projection of the target's hidden states."""
    weights = head.weights + (head.fc if features else 0)
    forward = device.at_best(weights * device.head_weight_bytes, 2.0 * rows * weights)
    return forward + device.overhead + device.head_overhead


def round_seconds(
    model: ModelShape, head: HeadShape, device: Device, requests: int, shape: TreeShape, context: int
) -> float:
    """Draft, verify and extend; plain decode is a shape of depth 0."""
    verify = forward_seconds(model, device, requests, shape.nodes, context)
    if not shape.depth:  # plain, or only lookup
        return verify + device.host
    steps = (shape.depth - 1) * head_seconds(head, device, requests * shape.topk, features=False)
    extend = head_seconds(head, device, requests * (shape.depth + 1), features=True)
    return steps + verify + extend + device.host


def seconds_left(total: float, other: float) -> float:
    """Seconds of computing alone, if reading alone takes `other` and both overlapped take `total`; or vice versa."""
    return max(total**_KNEE - other**_KNEE, 0.0) ** (1 / _KNEE)


def tree_tau(acceptance: Sequence[float], depth: int) -> float:
    """Tokens per verify: one, and one for each depth that is reached.

    acceptance[d - 1] is the share of rounds whose accepted path reaches depth d; deeper levels than measured use the
    last conditional acceptance.
    """
    shares = list(acceptance[:depth])
    if shares:
        before = shares[-2] if len(shares) > 1 else 1.0
        ratio = shares[-1] / before if before else 0.0
        while len(shares) < depth:
            shares.append(shares[-1] * ratio)
    return 1.0 + sum(shares)
