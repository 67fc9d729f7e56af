"""The tables of `fledge plan`: speed by concurrency, then the cost of data, features and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass as checked

from fledge.bench.options import Count, Levels, NotNegative, Positive
from fledge.bench.plan.forward import Device, forward_seconds, round_seconds, tree_tau
from fledge.bench.plan.shape import HeadShape, ModelShape
from fledge.bench.report.formats import Table, clock, human_bytes, human_count, number, times
from fledge.bench.report.speed import cost_per_million
from fledge.engine import PLAIN, TreeShape
from fledge.features import bytes_per_token
from fledge.heads.engines import refusal
from fledge.train import TrainOptions
from fledge.train.checkpoint import seconds_between

Engine = Literal["fledge", "sglang", "vllm"]
_TREE = (4, 4, 16)
_CHAIN = (3, 1, 4)  # what SGLang and vLLM are started with
_GENERATING = 64  # concurrent requests while the target writes its answers
_TRAINING_SHARE = 0.5  # relative to other kernels: attention, loss and optimiser are less dense
_TRAINED = TrainOptions()  # the defaults of a recipe
_NEWTON_SCHULZ_STEPS = 5  # of Muon, for each matrix and step, by every process
_STATE_BYTES = 12  # of a checkpoint per weight: master and two moments
# Seconds per byte of a checkpoint until it is copied, while all processes wait; measured on a CPU.
_SAVING = 0.7e-9


@checked(frozen=True)
class PlanOptions:
    """The user's assumptions."""

    bandwidth_gb_s: Positive
    tflops: Positive
    devices: Count = 1
    acceptance: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0.75, 0.56, 0.42, 0.32)
    engine: Engine = "fledge"  # which serves the head
    tree: Annotated[tuple[Count, ...], Field(min_length=3, max_length=3)] | None = None  # None: the engine's
    concurrency: Levels = (1, 2, 4, 8, 16, 32, 64)
    context: Count = 1024
    weight_bits: Positive | None = None  # None: as the checkpoint's config.json says
    efficiency: Annotated[float, Field(gt=0, le=1)] = 0.7
    overhead_us: NotNegative = 5.0
    conversations: Count = 100_000
    tokens_each: Count = 600
    draft_vocab: Count = 32_000
    features: Literal["transformers", "vllm"] = "transformers"  # what extracts them
    batch_tokens: Count = _TRAINED.batch_tokens
    disk_gb_s: Positive = 2.0  # of reading features
    price_per_hour: Positive | None = None

    @field_validator("acceptance")
    @classmethod
    def _falls(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if list(shares) != sorted(shares, reverse=True) or shares[0] > 1:
            raise ValueError("it must fall from depth to depth, from at most 1, as 0.75,0.56,0.42 does")
        return shares

    @field_validator("tree")
    @classmethod
    def _chain_for_vllm(cls, tree: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        if tree is not None and tree[1] > 1 and info.data.get("engine") == "vllm":
            raise ValueError("vLLM drafts chains alone: give 1 as the second number, as 3,1,4 does")
        return tree

    @property
    def shape(self) -> TreeShape:
        """What is drafted in a round."""
        return TreeShape(*(self.tree or (_TREE if self.engine == "fledge" else _CHAIN)))

    def bits(self, model: ModelShape) -> float:
        """Bits of a weight of the target."""
        return self.weight_bits or model.weight_bits or 16.0

    def device(self, model: ModelShape) -> Device:
        """All devices as one. An exchange between them costs about as much as a launch."""
        reached = self.efficiency * self.devices
        launches = 2 if self.devices > 1 else 1
        return Device(
            bandwidth=self.bandwidth_gb_s * 1e9 * reached,
            flops=self.tflops * 1e12 * reached,
            weight_bytes=self.bits(model) / 8,
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
    device, shape = options.device(model), options.shape
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
        notes=[*_notes(model, options, speeds), _training_note(model, head, device, options)],
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
    stored = tokens * bytes_per_token(model.hidden, "bf16")
    training = training_seconds(model, head, device, options)
    weights, count = head.weights + head.fc, human_count(tokens)
    return [
        ["answers of the target", f"{count} tokens", human_bytes(tokens * 5.0), clock(respond)],
        [
            f"features, by {options.features}",
            f"{count} tokens",
            human_bytes(stored),
            clock(feature_seconds(model, device, options)),
        ],
        [
            f"training, {_TRAINED.epochs:g} epochs",
            f"{human_count(weights)} weights",
            human_bytes(weights * 18.0),
            clock(sum(training)),
        ],
    ]


def feature_seconds(model: ModelShape, device: Device, options: PlanOptions) -> float:
    """Of prefills over all tokens. transformers runs the layers of one device after those of another."""
    at_work = device.flops / (options.devices if options.features == "transformers" else 1)
    return options.conversations * options.tokens_each * 2 * model.weights_per_token / at_work


class TrainingSeconds(NamedTuple):
    """The parts of training, one after the other."""

    products: float  # forward and backward
    muon: float
    reading: float
    checkpoints: float


def training_seconds(
    model: ModelShape, head: HeadShape, device: Device, options: PlanOptions
) -> TrainingSeconds:
    """Training on all devices, each of which orthogonalises all of Muon's matrices."""
    passes = options.conversations * options.tokens_each * _TRAINED.epochs
    weights = head.weights + head.fc
    products = 6.0 * weights * passes * _TRAINED.ttt_steps / (device.flops * _TRAINING_SHARE)
    steps = passes / options.batch_tokens
    one_device = device.flops * _TRAINING_SHARE / options.devices
    muon = steps * sum(map(muon_flops, head.matrices)) / one_device
    reading = passes * bytes_per_token(model.hidden, "bf16") / (options.disk_gb_s * 1e9)
    saved = weights * _STATE_BYTES
    saves = (products + muon + reading) / seconds_between(saved)
    return TrainingSeconds(products, muon, reading, saves * saved * _SAVING)


def muon_flops(matrix: tuple[int, int]) -> float:
    """Of bringing a matrix' singular values near 1: x -> a x + (b y + c y y) x with y = x x^T, on its smaller side."""
    small, large = sorted(matrix)
    return _NEWTON_SCHULZ_STEPS * (4.0 * small * small * large + 2.0 * small**3)


def _notes(model: ModelShape, options: PlanOptions, speeds: Sequence[SpeedRow]) -> list[str]:
    notes = [
        f"Kernels are taken to reach {options.efficiency:.0%} of bandwidth and FLOP/s; --efficiency changes it. "
        f"Tau {speeds[0].tau:.2f} follows from --acceptance for {_shape_name(options.shape)}."
    ]
    if model.quantised and options.weight_bits is None:
        notes.append(
            f"{model.weight_bits:g} bits are taken for each weight, as config.json says ({model.quantised})."
            if model.weight_bits is not None
            else f"config.json says that the weights are quantised ({model.quantised}), not how; 16 bits are taken for "
            "each: --weight-bits changes it."
        )
    if sentence := refusal(options.engine, model.architecture):
        notes.append(f"warning: {sentence}.")
    losing = [row.concurrency for row in speeds if row.speedup < 1]
    if losing:
        notes.append(
            f"With {', '.join(map(str, losing))} in flight this loses"
            + ("; the planner would take a smaller tree or none." if options.engine == "fledge" else ".")
        )
    if model.experts > 1:
        notes.append(
            f"{model.experts} experts, {model.experts_used} a token: a verify reads more of them than a plain step."
        )
    return notes


def _training_note(model: ModelShape, head: HeadShape, device: Device, options: PlanOptions) -> str:
    parts = training_seconds(model, head, device, options)
    return (
        f"Training: {clock(parts.products)} of products, {clock(parts.muon)} of Muon, {clock(parts.reading)} of "
        f"reading ({options.disk_gb_s:g} GB/s), {clock(parts.checkpoints)} of checkpoints; "
        f"{options.batch_tokens:,} tokens a batch."
    )


def _shape_name(shape: TreeShape) -> str:
    kind = "chains" if shape.topk == 1 else "the tree"
    return f"{kind} {shape.depth},{shape.topk},{shape.nodes}"
