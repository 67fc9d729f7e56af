"""A roofline: reading and computing overlapped, with a round knee, plus the cost of launches.

seconds  ^                      __/  computing: rows * 2 * weights / FLOP/s
         |            _______---
         |-----'''                     reading: weights / bandwidth (+ each request's KV)
         +------------------------> rows

round = (depth - 1) draft steps + one verify + one draft-extend
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fledge.base.console import human_bytes
from fledge.bench.plan.options import PlanOptions
from fledge.bench.plan.shape import HeadShape, ModelShape
from fledge.bench.report.formats import Table, human_count, number, times
from fledge.engine import PLAIN, TreeShape
from fledge.features import bytes_per_token
from fledge.heads.engines import refusal

_BF16 = 2.0  # bytes of a value of the KV cache and of a head's weight
_ANSWER_BYTES = 5.0  # of a token in the files of conversations, about
# Reading and computing overlap, but not fully: near the knee a forward takes longer than either. This p-norm fits
# verifies of 2 to 64 rows on two generations of CPUs; the textbook roofline has an infinite p.
_KNEE = 3.0


@dataclass(frozen=True)
class Device:
    """All devices together, at the speed that kernels reach."""

    bandwidth: float  # bytes per second
    flops: float  # per second
    weight_bytes: float  # per weight of the target
    launch: float  # seconds per layer of a forward
    exchanges: bool = False  # of results between devices, in every layer

    @classmethod
    def of(cls, options: PlanOptions) -> Device:
        """All devices as one. An exchange between them costs about as much as a launch."""
        reached = options.efficiency * options.devices
        return cls(
            bandwidth=options.bandwidth_gb_s * 1e9 * reached,
            flops=options.tflops * 1e12 * reached,
            weight_bytes=options.weight_bits / 8,
            launch=options.overhead_us * 1e-6,
            exchanges=options.devices > 1,
        )

    def at_best(self, read_bytes: float, flops: float) -> float:
        """Seconds of reading and computing, overlapped."""
        reading, computing = read_bytes / self.bandwidth, flops / self.flops
        return (reading**_KNEE + computing**_KNEE) ** (1 / _KNEE)

    @property
    def layer(self) -> float:
        """Seconds of a layer besides reading and computing."""
        return self.launch * (1 + self.exchanges)


def forward_seconds(model: ModelShape, device: Device, requests: int, rows_each: int, context: int) -> float:
    """One forward of the target over `rows_each` tokens per request, each after a prefix of `context` tokens."""
    rows, seen = requests * rows_each, model.seen(context)
    read = model.weights_read(rows) * device.weight_bytes + requests * seen * model.kv_width * _BF16
    flops = rows * (2 * model.weights_per_token + seen * model.attention_flops)
    return device.at_best(read, flops) + model.layers * device.layer


def head_seconds(head: HeadShape, device: Device, rows: int, *, features: bool) -> float:
    """One forward of the head; `features`: including the projection of the target's hidden states."""
    weights = head.weights + (head.fc if features else 0)
    # Of its layer, and of top-k and building its batch.
    return device.at_best(weights * _BF16, 2.0 * rows * weights) + device.layer + device.launch


def round_seconds(
    model: ModelShape, head: HeadShape, device: Device, requests: int, shape: TreeShape, context: int
) -> float:
    """Draft, verify and extend; plain decode is a shape of depth 0."""
    verify = forward_seconds(model, device, requests, shape.nodes, context)
    if not shape.depth:
        return verify
    steps = (shape.depth - 1) * head_seconds(head, device, requests * shape.topk, features=False)
    return steps + verify + head_seconds(head, device, requests * (shape.depth + 1), features=True)


def tree_tau(acceptance: Sequence[float], depth: int) -> float:
    """Tokens per verify: one, and one for each depth that is reached.

    acceptance[d - 1] is the share of rounds whose accepted path reaches depth d; deeper levels than measured use the
    last conditional acceptance.
    """
    shares = list(acceptance[:depth])
    before = shares[-2] if len(shares) > 1 else 1.0
    ratio = shares[-1] / before if before else 0.0
    while len(shares) < depth:
        shares.append(shares[-1] * ratio)
    return 1.0 + sum(shares)


@dataclass(frozen=True)
class SpeedRow:
    """One level of load."""

    concurrency: int
    tpot_plain_ms: float
    tpot_ms: float
    tau: float

    @property
    def speedup(self) -> float:
        """Plain decode's time per token over that with the head; below 1 the planner would not draft."""
        return self.tpot_plain_ms / self.tpot_ms

    @property
    def cells(self) -> list[str]:
        """Cells of the table's row."""
        tpots = (self.tpot_plain_ms, self.tpot_ms)
        throughput = (number(1e3 * self.concurrency / tpot, 0) for tpot in tpots)
        return [str(self.concurrency), *(number(tpot, 2) for tpot in tpots), times(self.speedup), *throughput]


@dataclass(frozen=True)
class Plan:
    """The printed prediction."""

    title: str
    speeds: list[SpeedRow]
    byte_table: Table
    notes: list[str]

    @property
    def speed_table(self) -> Table:
        """Speed by requests in flight."""
        columns = ("in flight", "plain TPOT ms", "TPOT ms", "speed-up", "plain tokens/s", "tokens/s")
        return Table(columns, [row.cells for row in self.speeds])


def make_plan(model: ModelShape, options: PlanOptions) -> Plan:
    """Predict speed by concurrency, and the bytes of weights, KV, answers and features."""
    device, shape, context = Device.of(options), options.shape, options.context
    head, tau = HeadShape.of(model, options.draft_vocab), tree_tau(options.acceptance, options.shape.depth)
    speeds = []
    for level in options.concurrency:
        plain, drafted = (
            1e3 * round_seconds(model, head, device, level, tree, context) for tree in (PLAIN, shape)
        )
        speeds.append(SpeedRow(level, plain, drafted / tau, tau))
    weights, tokens = head.weights + head.fc, options.conversations * options.tokens_each
    conversations = f"{human_count(tokens)} tokens"
    sizes = [
        ("weights", human_count(model.weights), model.weights * device.weight_bytes),
        ("the head's weights", human_count(weights), weights * _BF16),
        ("KV of a request", f"{context:,} tokens", model.seen(context) * model.kv_width * _BF16),
        ("answers of the target", conversations, tokens * _ANSWER_BYTES),
        ("features", conversations, tokens * bytes_per_token(model.hidden, "bf16")),
    ]
    return Plan(
        title=f"{model.name.removesuffix('.json')}: head {weights / model.weights:.1%} of its weights",
        speeds=speeds,
        byte_table=Table(
            ("", "amount", "bytes"), [(name, count, human_bytes(size)) for name, count, size in sizes]
        ),
        notes=_notes(model, options, speeds),
    )


def _notes(model: ModelShape, options: PlanOptions, speeds: Sequence[SpeedRow]) -> list[str]:
    tree = options.shape
    notes = [
        f"Kernels are taken to reach {options.efficiency:.0%} of bandwidth and FLOP/s; --efficiency changes it. "
        f"Tau {speeds[0].tau:.2f} follows from --acceptance for {'chains' if tree.topk == 1 else 'the tree'} "
        f"{tree.depth},{tree.topk},{tree.nodes}."
    ]
    if model.quantised:
        notes.append(
            f"config.json says that the weights are quantised ({model.quantised}); {options.weight_bits:g} bits are "
            "taken for each: --weight-bits changes it."
        )
    if sentence := refusal(options.engine, model.architecture):
        notes.append(f"warning: {sentence}.")
    if losing := [row.concurrency for row in speeds if row.speedup < 1]:
        notes.append(
            f"With {', '.join(map(str, losing))} in flight this loses"
            + ("; the planner would take a smaller tree or none." if options.engine == "fledge" else ".")
        )
    return notes
