"""Options of `fledge plan`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from fledge.base.errors import DataError, FledgeError
from fledge.base.options import Flag, Options
from fledge.bench.options import Count, Levels, Listed, NotNegative, Positive
from fledge.engine.shapes import TreeShape

Tree = Annotated[tuple[Count, ...], Field(min_length=3, max_length=3), Listed]
_TREE = (4, 4, 16)
_CHAIN = (3, 1, 4)  # what SGLang and vLLM are started with


class PlanOptions(Options):
    """The user's assumptions."""

    error: ClassVar[type[FledgeError]] = DataError

    bandwidth_gb_s: Annotated[Positive, Flag(names=("--bandwidth",))] = Field(
        description="memory bandwidth of one device, GB/s"
    )
    tflops: Positive = Field(description="dense bf16 throughput of one device, TFLOP/s")
    devices: Count = Field(1, description="devices that share the model (tensor parallel)")
    acceptance: Annotated[tuple[NotNegative, ...], Field(min_length=1), Listed] = Field(
        (0.75, 0.56, 0.42, 0.32), description="by depth: share of rounds whose accepted path reaches it"
    )
    engine: Literal["fledge", "sglang", "vllm"] = Field(
        "fledge", description="what serves the head; sglang and vllm draft chains"
    )
    tree: Annotated[Tree | None, Flag(default="4,4,16, or 3,1,4 for chains")] = Field(
        None, description="depth,topk,nodes of the draft tree"
    )
    concurrency: Levels = Field((1, 2, 4, 8, 16, 32, 64), description="requests in flight")
    context: Count = Field(1024, description="tokens in the KV cache of a request")
    weight_bits: Positive = Field(16.0, description="bits of a weight, its share of scales included")
    efficiency: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7, description="share of bandwidth and FLOP/s that kernels reach"
    )
    overhead_us: NotNegative = Field(5.0, description="microseconds of launches per forward and layer")
    conversations: Count = Field(100_000, description="conversations to train the head on")
    tokens_each: Count = Field(600, description="tokens of a conversation")
    draft_vocab: Count = Field(32_000, description="tokens the head can propose")

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
        """Shape of the tree drafted in a round."""
        return TreeShape(*(self.tree or (_TREE if self.engine == "fledge" else _CHAIN)))
