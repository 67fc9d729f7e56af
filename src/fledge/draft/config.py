"""The shape of a draft head, in one form for all checkpoint formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fledge.draft.options import HeadOptions
from fledge.target.config import DecoderConfig

if TYPE_CHECKING:
    from fledge.target.target import Target


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
        sizes: HeadOptions = HeadOptions(),
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
    target_quantization: str = ""  # of its matrices, such as Q4_1; "none" for plain numbers
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
            target_quantization=target.quantization or "none",
            vocabulary_hash=target.vocabulary_hash,
            template_hash=target.template_hash,
            chat_template_kwargs=target.chat.options,
            target_architecture=c.architecture,
            target_layers=c.num_layers,
            feature_layers=c.feature_layers,
        )
