"""What a recipe can say about feature extraction. The field descriptions are the documentation."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class FeatureOptions(BaseModel):
    """The target's hidden states over the conversations: what the head reads and learns from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch_tokens: int = Field(
        4096, ge=16, description="rows of one prefill of the target, conversations packed"
    )
    shard_mib: int = Field(256, ge=1, description="size of a shard in MiB: what a kill can lose")
