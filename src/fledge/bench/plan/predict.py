"""The tables of `fledge plan`: speed by concurrency, then what data, features and training take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fledge.bench.load.metrics import cost_per_million
from fledge.bench.plan.forward import Device, forward_seconds, round_seconds, tree_tau
from fledge.bench.plan.shape import HeadShape, ModelShape
from fledge.bench.report.formats import clock, human_bytes, human_count, number, times
from fledge.engine import PLAIN, TreeShape
from fledge.errors import DataError
from fledge.train import TrainOptions

_GENERATING = 64  # requests at once while the target writes its answers
_TRAINING_SHARE = 0.5  # of what kernels reach otherwise: attention, loss and the optimiser are less dense
_TRAINED = TrainOptions()  # as a recipe that says nothing else


@dataclass(frozen=True)
class PlanOptions:
    """The user's assumptions."""

    bandwidth_gb_s: float
    tflops: float
    devices: int = 1
    acceptance: tuple[float, ...] = (0.75, 0.56, 0.42, 0.32)
    tree: tuple[int, ...] = (4, 4, 16)
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    context: int = 1024
    weight_bits: float = 16.0
    efficiency: float = 0.7
    overhead_us: float = 5.0
    conversations: int = 100_000
    tokens_each: int = 600
    draft_vocab: int = 32_000
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        positive = {"bandwidth": self.bandwidth_gb_s, "tflops": self.tflops, "devices": self.devices}
        positive |= {
            "weight-bits": self.weight_bits,
            "efficiency": self.efficiency,
            "context": self.context,
            "draft-vocab": self.draft_vocab,
        }
        if self.price_per_hour is not None:
            positive["price"] = self.price_per_hour
        for name, value in positive.items():
            if not 0 < value < math.inf:  # NaN isn't, either
                raise DataError(f"--{name} is {value}; give a number above 0")
        if not 0 <= self.overhead_us < math.inf:
            raise DataError(f"--overhead-us is {self.overhead_us}; give at least 0")
        if self.efficiency > 1:
            raise DataError(f"--efficiency is {self.efficiency}, a share; give at most 1, such as 0.7")
        if len(self.tree) != 3:
            raise DataError(
                f"--tree {','.join(map(str, self.tree))} is no tree; write depth,topk,nodes such as 4,4,16"
            )
        ordered = [1.0, *self.acceptance]
        if any(not 0 <= later <= before for before, later in pairwise(ordered)):
            raise DataError(
                "--acceptance must fall from depth to depth, from at most 1; write it like 0.75,0.56,0.42"
            )
        if not self.acceptance or not self.concurrency:
            raise DataError("--acceptance and --concurrency need at least one number")
        if min(self.concurrency) < 1 or min(self.conversations, self.tokens_each) < 1:
            raise DataError("--concurrency, --conversations and --tokens-each must be at least 1")
        if self.tree[0] < 1 or self.tree[1] < 1 or self.tree[2] < 2:
            raise DataError("--tree needs a depth and width of at least 1 and 2 nodes, such as 4,4,16")

    @property
    def device(self) -> Device:
        """All devices as one; each exchange between them costs about a launch."""
        reached = self.efficiency * self.devices
        launches = 2 if self.devices > 1 else 1
        return Device(
            bandwidth=self.bandwidth_gb_s * 1e9 * reached,
            flops=self.tflops * 1e12 * reached,
            weight_bytes=self.weight_bits / 8,
            overhead=self.overhead_us * 1e-6 * launches,
            head_overhead=self.overhead_us * 1e-6,
        )


@dataclass(frozen=True)
class SpeedRow:
    """One level of load."""

    concurrency: int
    tpot_plain_ms: float
    tpot_ms: float
    throughput_plain: float
    throughput: float
    tau: float

    @property
    def speedup(self) -> float:
        """Plain decode's time per token over that with the head; below 1 the planner would not draft."""
        return self.tpot_plain_ms / self.tpot_ms


@dataclass(frozen=True)
class Plan:
    """What is printed."""

    title: str
    speeds: list[SpeedRow]
    speed_columns: list[str]
    speed_rows: list[list[str]]
    work_columns: list[str]
    work_rows: list[list[str]]
    notes: list[str]


def make_plan(model: ModelShape, options: PlanOptions) -> Plan:
    """Predict everything."""
    device, shape = options.device, TreeShape(*options.tree)
    head = HeadShape.of(model, options.draft_vocab)
    speeds = [predict_speed(model, head, device, options, shape, level) for level in options.concurrency]
    columns = ["in flight", "plain TPOT ms", "TPOT ms", "speed-up", "plain tokens/s", "tokens/s"]
    if options.price_per_hour is not None:
        columns += ["plain cost/M", "cost/M"]
    size = human_bytes(model.weights * device.weight_bytes)
    name = model.name.removesuffix(".json")
    share = head.weights + head.fc
    return Plan(
        title=f"{name}: {human_count(model.weights)} weights, {size}; head {share / model.weights:.1%} of it",
        speeds=speeds,
        speed_columns=columns,
        speed_rows=[_speed_cells(row, options) for row in speeds],
        work_columns=["step", "amount", "disk", "time"],
        work_rows=_work_rows(model, head, device, options),
        notes=_notes(model, options, speeds),
    )


def predict_speed(
    model: ModelShape, head: HeadShape, device: Device, options: PlanOptions, shape: TreeShape, level: int
) -> SpeedRow:
    """One level of load."""
    plain = round_seconds(model, head, device, level, PLAIN, options.context)
    whole = round_seconds(model, head, device, level, shape, options.context)
    tau = tree_tau(options.acceptance, shape.depth)
    return SpeedRow(level, 1e3 * plain, 1e3 * whole / tau, level / plain, level * tau / whole, tau)


def _speed_cells(row: SpeedRow, options: PlanOptions) -> list[str]:
    cells = [str(row.concurrency), number(row.tpot_plain_ms, 2), number(row.tpot_ms, 2), times(row.speedup)]
    cells += [number(row.throughput_plain, 0), number(row.throughput, 0)]
    if options.price_per_hour is not None:
        price = options.price_per_hour * options.devices
        cells += [
            number(cost_per_million(price, value), 2) for value in (row.throughput_plain, row.throughput)
        ]
    return cells


def _work_rows(model: ModelShape, head: HeadShape, device: Device, options: PlanOptions) -> list[list[str]]:
    tokens = options.conversations * options.tokens_each
    step = forward_seconds(model, device, _GENERATING, 1, options.tokens_each)
    respond = tokens / (_GENERATING / step)
    prefill = tokens * 2 * model.weights_per_token / device.flops
    stored = tokens * (4 * model.hidden * 2 + 9)  # four hidden states in bf16, ids and mask
    weights = head.weights + head.fc
    passes = tokens * _TRAINED.epochs * _TRAINED.ttt_steps
    training = 6.0 * weights * passes / (device.flops * _TRAINING_SHARE)
    count = human_count(tokens)
    return [
        ["answers of the target", f"{count} tokens", human_bytes(tokens * 5.0), clock(respond)],
        ["features, if stored (offline)", f"{count} tokens", human_bytes(stored), clock(prefill)],
        [
            f"training, {_TRAINED.epochs:g} epochs",
            f"{human_count(weights)} weights",
            human_bytes(weights * 18.0),
            clock(training),
        ],
    ]


def _notes(model: ModelShape, options: PlanOptions, speeds: Sequence[SpeedRow]) -> list[str]:
    notes = [
        f"Kernels are taken to reach {options.efficiency:.0%} of bandwidth and FLOP/s; --efficiency changes it. "
        f"Tau {speeds[0].tau:.2f} follows from --acceptance for the tree {','.join(map(str, options.tree))}."
    ]
    if model.quantised and options.weight_bits == 16.0:
        notes.append(
            f"config.json says that the weights are quantised ({model.quantised}); 16 bits are taken for each all the "
            "same: --weight-bits 8 is fp8, --weight-bits 4.25 mxfp4."
        )
    losing = [row.concurrency for row in speeds if row.speedup < 1]
    if losing:
        notes.append(
            f"With {', '.join(map(str, losing))} in flight this tree loses; the planner would take a smaller or none."
        )
    if model.experts > 1:
        notes.append(
            f"{model.experts} experts, {model.experts_used} a token: a verify reads more of them than a plain step."
        )
    return notes
