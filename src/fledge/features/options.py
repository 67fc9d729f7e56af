"""Feature extraction options of a recipe. The field descriptions are the documentation."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Codec = Literal["bf16", "fp8"]


class FeatureOptions(BaseModel):
    """The target's hidden states over the conversations: what the head reads and learns from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch_tokens: int = Field(
        4096, ge=16, description="rows of one prefill of the target, conversations packed"
    )
    feed: Literal["offline", "online", "hybrid"] = Field(
        "offline",
        description="what training reads: offline a store, online the target at work, hybrid the target at work in "
        "the first pass and what was kept of it later; held-out features are always stored",
    )
    codec: Codec = Field(
        "bf16", description="how hidden states are kept: bf16, or fp8 with a scale per row at half the bytes"
    )
    shard_mib: int = Field(256, ge=1, description="size of a shard in MiB: what a kill can lose")
    device_map: str | None = Field(
        None,
        description="extract with transformers' own model instead of fledge's decoder, spread over devices as its "
        "device_map says (`auto`, `balanced`, ...): for a target that is larger than one device",
    )
    server: str | None = Field(
        None,
        description="address of a vLLM server that writes the target's hidden states (see Features), such as "
        "http://localhost:8000; the target isn't loaded here",
    )
    price_per_gb: float = Field(
        0.02, ge=0.0, description="what a GB (10^9 bytes) in the store's place costs per month, for estimates"
    )

    @model_validator(mode="after")
    def _decoder_feeds_training(self) -> FeatureOptions:
        if (self.device_map or self.server) and self.feed != "offline":
            name = "device_map" if self.device_map else "server"
            raise ValueError(
                f"feed={self.feed} runs fledge's own decoder during training; {name} needs feed=offline"
            )
        if self.device_map and self.server:
            raise ValueError("device_map and server both extract: leave one of them out")
        return self
