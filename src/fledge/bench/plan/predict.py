"""The tables of `fledge plan`: speed by concurrency, then the cost of data, features and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass as checked

from fledge.bench.load.metrics import cost_per_million
from fledge.bench.options import Count, Levels, NotNegative, Positive
from fledge.bench.plan.forward import Device, forward_seconds, round_seconds, tree_tau
from fledge.bench.plan.shape import HeadShape, ModelShape
from fledge.bench.report.formats import Table, clock, human_bytes, human_count, number, times
from fledge.engine import PLAIN, TreeShape
from fledge.features import bytes_per_token
from fledge.train import TrainOptions

_GENERATING = 64  # concurrent requests while the target writes its answers
_TRAINING_SHARE = 0.5  # relative to other kernels: attention, loss and optimiser are less dense
_TRAINED = TrainOptions()  # the defaults of a recipe


@checked(frozen=True)
class PlanOptions:
    """The user's assumptions."""

    bandwidth_gb_s: Positive
    tflops: Positive
    devices: Count = 1
    acceptance: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0.75, 0.56, 0.42, 0.32)
    tree: Annotated[tuple[Count, ...], Field(min_length=3, max_length=3)] = (4, 4, 16)
    concurrency: Levels = (1, 2, 4, 8, 16, 32, 64)
    context: Count = 1024
    weight_bits: Positive = 16.0
    efficiency: Annotated[float, Field(gt=0, le=1)] = 0.7
    overhead_us: NotNegative = 5.0
    conversations: Count = 100_000
    tokens_each: Count = 600
    draft_vocab: Count = 32_000
    price_per_hour: Positive | None = None

    @field_validator("acceptance")
    @classmethod
    def _falls(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if list(shares) != sorted(shares, reverse=True) or shares[0] > 1:
            raise ValueError("it must fall from depth to depth, from at most 1, as 0.75,0.56,0.42 does")
        return shares

    @property
    def device(self) -> Device:
        """All devices as one. An exchange between them costs about as much as a launch."""
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
    """The printed prediction."""

    title: str
    speeds: list[SpeedRow]
    speed_table: Table
    work_table: Table
    notes: list[str]


def make_plan(model: ModelShape, options: PlanOptions) -> Plan:
    """Predict speed by concurrency, and the cost of data, features and training."""
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
        speed_table=Table(columns, [_speed_cells(row, options) for row in speeds]),
        work_table=Table(("step", "amount", "disk", "time"), _work_rows(model, head, device, options)),
        notes=_notes(model, options, speeds),
    )


def predict_speed(
    model: ModelShape, head: HeadShape, device: Device, options: PlanOptions, shape: TreeShape, level: int
) -> SpeedRow:
    """One level of load."""
    plain = round_seconds(model, head, device, level, PLAIN, options.context)
    round_s = round_seconds(model, head, device, level, shape, options.context)
    tau = tree_tau(options.acceptance, shape.depth)
    return SpeedRow(level, 1e3 * plain, 1e3 * round_s / tau, level / plain, level * tau / round_s, tau)


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
    stored = tokens * bytes_per_token(model.hidden, "bf16")
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
