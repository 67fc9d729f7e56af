"""Sizes of a new head. The field descriptions are the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from fledge.base.errors import HeadError
from fledge.base.options import RecipePart

if TYPE_CHECKING:
    from fledge.target.config import DecoderConfig

_DENSE_WIDTH = 6  # MLP width over hidden size, as SpecForge's heads for gpt-oss and Qwen3-30B-A3B have
_LATENT_HEAD_DIM, _LATENT_KV_HEADS = 128, 8


class LayerSizes(NamedTuple):
    """Sizes of a head's layer besides its hidden size."""

    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


class TargetSizes(NamedTuple):
    """The target's sizes that determine those of its head, as DecoderConfig has them too."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mixture: bool  # it has experts
    latent_attention: bool  # keys and values are compressed


class HeadOptions(RecipePart):
    """Sizes of a new head's one layer. The hidden size is the target's."""

    intermediate_size: int | None = Field(
        None, ge=1, description="width of the MLP; null: the target's, six hidden sizes if it has experts"
    )
    num_heads: int | None = Field(
        None,
        ge=1,
        description="query heads; null: the target's, hidden size / 128 if its keys are latent (DeepSeek)",
    )
    num_kv_heads: int | None = Field(
        None, ge=1, description="heads of keys and values; null: the target's, 8 if they are latent"
    )

    def complete(self, target: DecoderConfig | TargetSizes) -> LayerSizes:
        """The sizes of the head's layer.

        They are the target's, with two exceptions. Beside a mixture of experts, whose width is one expert's, the MLP is
        as wide as a dense target's of that hidden size. Where keys and values are latent (DeepSeek), there are as many
        heads of 128 as the hidden size holds, and 8 of keys. Raises a HeadError for sizes that don't fit together.
        """
        head_dim, heads, kv_heads = target.head_dim, target.num_heads, target.num_kv_heads
        if target.latent_attention and target.hidden_size % (_LATENT_HEAD_DIM * _LATENT_KV_HEADS) == 0:
            head_dim, kv_heads = _LATENT_HEAD_DIM, _LATENT_KV_HEADS
            heads = target.hidden_size // head_dim
        width = _DENSE_WIDTH * target.hidden_size if target.mixture else target.intermediate_size
        heads, kv_heads = self.num_heads or heads, self.num_kv_heads or kv_heads
        if heads % kv_heads:
            raise HeadError(
                f"a head of {heads} query heads can't share {kv_heads} heads of keys: set train.head.num_heads to a "
                "multiple of train.head.num_kv_heads"
            )
        return LayerSizes(self.intermediate_size or width, heads, kv_heads, head_dim)
