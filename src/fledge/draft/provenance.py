"""Where a draft head comes from, and its parts together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fledge.draft.description import HeadConfig, HeadWeights

if TYPE_CHECKING:
    from fledge.target.target import Target


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


class HeadParts(Protocol):
    """The parts of a head, as stored in its files."""

    config: HeadConfig
    weights: HeadWeights
    metadata: HeadMetadata
