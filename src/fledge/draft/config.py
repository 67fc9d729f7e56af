"""The shape of a draft head, in one form for all checkpoint formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fledge.base.errors import HeadError
from fledge.target.config import DecoderConfig

if TYPE_CHECKING:
    from fledge.target.target import Target

_DENSE_WIDTH = 6  # MLP width over hidden size, as SpecForge's heads for gpt-oss and Qwen3-30B-A3B have
_LATENT_HEAD_DIM, _LATENT_KV_HEADS = 128, 8


@dataclass(frozen=True)
class ChosenSizes:
    """Sizes of a new head that aren't fixed by its target; None: chosen by `complete`."""

    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None

    def complete(self, target: AttentionSizes) -> LayerSizes:
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


class LayerSizes(NamedTuple):
    """Sizes of a head's layer besides its hidden size."""

    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


class AttentionSizes(Protocol):
    """The target's sizes that determine those of its head."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def mixture(self) -> bool:
        """True if the target has experts."""

    @property
    def latent_attention(self) -> bool:
        """True if keys and values are compressed."""


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and switches of an EAGLE-3 head: one Llama layer whose attention reads embedding and hidden state."""

    hidden_size: int  # H
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    vocab_size: int  # the target's
    draft_vocab_size: int  # Vd
    target_hidden_size: int  # Ht
    fc_norm: bool = False  # EAGLE-3.1: an RMSNorm on each of the three features before fc
    norm_output: bool = False  # EAGLE-3.1: the next step's hidden state is the output after the final norm
    norm_before_residual: bool = False  # speculators: the residual is the hidden state after hidden_norm

    @property
    def qkv_size(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @classmethod
    def for_target(
        cls,
        target: DecoderConfig,
        draft_vocab_size: int,
        *,
        fc_norm: bool = False,
        norm_output: bool = False,
        sizes: ChosenSizes = ChosenSizes(),
    ) -> HeadConfig:
        """A head as wide as its target; context length and RoPE are inherited too."""
        return cls(
            hidden_size=target.hidden_size,
            **sizes.complete(target)._asdict(),
            rms_norm_eps=target.rms_norm_eps,
            rope_theta=target.rope_theta,
            rope_scaling=target.rope_scaling,
            max_position_embeddings=target.own_positions,
            vocab_size=target.vocab_size,
            draft_vocab_size=draft_vocab_size,
            target_hidden_size=target.hidden_size,
            fc_norm=fc_norm,
            norm_output=norm_output,
        )


@dataclass(frozen=True)
class HeadMetadata:
    """A head's provenance; stored in its config.json under `fledge`. Empty strings: unknown."""

    target_name: str = ""
    target_revision: str = ""
    vocabulary_hash: str = ""  # of the target's tokens and chat template (`target/identity.py`)
    template_hash: str = ""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # of its training conversations
    target_architecture: str = ""
    target_layers: int = 0  # 0: unknown
    feature_layers: tuple[int, ...] = ()  # layers whose OUTPUT the head reads; empty: the defaults
    training: Mapping[str, Any] = field(default_factory=dict)  # informational: data, steps, tau

    @classmethod
    def of(cls, target: Target) -> HeadMetadata:
        """The metadata of a head trained for `target`."""
        c = target.config
        return cls(
            target_name=target.name,
            target_revision=target.revision,
            vocabulary_hash=target.vocabulary_hash,
            template_hash=target.template_hash,
            chat_template_kwargs=target.chat.options,
            target_architecture=c.architecture,
            target_layers=c.num_layers,
            feature_layers=c.feature_layers,
        )
