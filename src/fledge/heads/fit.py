"""Does a head fit a target? Shape, tokens, chat template and feature layers must; other weights are information.

Quantisations and fine-tunes of a model differ in their weights alone, and a head for one drafts for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fledge.draft.description import HeadConfig
from fledge.draft.provenance import HeadMetadata
from fledge.target.config import are_three_layers

if TYPE_CHECKING:
    from fledge.target.target import Target


class TargetShape(Protocol):
    """The sizes that a target's config or file header states."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...


def shape_misfits(config: HeadConfig, shape: TargetShape, *, own_embedding: bool) -> list[str]:
    """Sizes of the head that don't fit the target; needs none of the target's weights."""
    misfits = []
    if config.vocab_size != shape.vocab_size:
        misfits.append(f"a vocabulary of {config.vocab_size}, the target has {shape.vocab_size}")
    if config.target_hidden_size != shape.hidden_size:
        misfits.append(f"features of {config.target_hidden_size}, the target has {shape.hidden_size}")
    if not own_embedding and config.hidden_size != shape.hidden_size:
        misfits.append(f"hidden size {config.hidden_size} without an embedding of its own")
    return misfits


def origin_misfits(metadata: HeadMetadata, target: Target) -> list[str]:
    """Differences between the target that the head records and this one; fields without a record are skipped."""
    misfits, layers, theirs = [], metadata.feature_layers, target.config.feature_layers
    if layers and layers != theirs:
        misfits.append(
            f"features of layers {_joined(layers)}, but this target has {_joined(theirs)} "
            f"(counted by output; {_layers_remedy(layers, target.config.num_layers)})"
        )
    if metadata.vocabulary_hash and metadata.vocabulary_hash != target.vocabulary_hash:
        misfits.append("other tokens, though as many of them")
    recorded, own = metadata.template_hash, target.template_hash
    if recorded and own and recorded != own:
        misfits.append(
            "been trained on conversations in another chat template (fledge import HEAD NEW --target TARGET makes it "
            "this target's)"
        )
    return misfits


def other_weights(metadata: HeadMetadata, target: Target) -> str:
    """A line on a head that fits and was trained on other weights; empty for the head's own target."""
    recorded = metadata.target_revision
    if not recorded or recorded == target.revision:
        return ""
    return (
        f"trained on other weights of this shape ({metadata.target_name or 'unnamed'}, revision {recorded[:12]}; this "
        f"is {target.revision[:12]}): expect a similar acceptance of another quantisation, less of a fine-tune; "
        "`fledge doctor` measures it"
    )


def _layers_remedy(layers: tuple[int, ...], count: int) -> str:
    """Remedy for a head of other layers: the target's features of them, if it has them all."""
    if are_three_layers(layers, count):
        return (
            f"target.feature_layers={list(layers)} selects the head's; if only its config is wrong, use "
            "fledge import --layers"
        )
    remedy = f"the target's {count} layers are 0 to {count - 1}"
    for step in (-1, 1):  # inputs taken for outputs, or the other way round
        if are_three_layers(shifted := [layer + step for layer in layers], count):
            numbers = ",".join(map(str, shifted))
            return f"{remedy}; if the ids were counted the other way, use fledge import --layers {numbers}"
    return f"{remedy}; use fledge import --layers with the three it was trained on"


def _joined(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))
