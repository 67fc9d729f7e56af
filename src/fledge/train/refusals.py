"""Refuses training and evaluation that are bound to fail, before hours are spent on earlier stages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fledge.base.errors import RecipeError
from fledge.features import SampleInfo
from fledge.target import Target
from fledge.train.batches import is_trainable
from fledge.train.curves import refuse_without_wandb
from fledge.train.evaluation import no_heldout
from fledge.train.loss import OUTSIDE, STEP, named_in, own_loss_gradient_
from fledge.train.options import TrainOptions
from fledge.train.start import drawn_conversations


def refuse_untrainable(target: Target, options: TrainOptions) -> None:
    """Raise the errors that `train` would raise regardless of the conversations."""
    refuse_without_wandb(options)
    refuse_unusable_loss(target, options)
    always = set(target.chat.turn_end_ids)
    if options.new_vocab_size < len(always):
        raise RecipeError(
            f"train.draft_vocab_size={options.draft_vocab_size} can't hold the {len(always)} tokens that end a turn; "
            f"raise it to at least {len(always)}"
        )
    if options.init_head is not None:
        return
    options.head.complete(target.config)  # raises if they don't fit together
    if options.init == "target":
        if options.head.model_fields_set:
            raise RecipeError(
                "train.init=target copies the target's last layer, whose sizes train.head can't change: leave "
                "train.head out, or set train.init to lm_head"
            )
        target.weights.layers[-1].dense_mlp  # noqa: B018  # raises if there is none to copy


def refuse_unusable_loss(target: Target, options: TrainOptions) -> None:
    """Call a user-defined loss on four rows.

    Raises a RecipeError if it can't be imported, a DataError if its result can't be trained on.
    """
    loss = options.own_loss
    if loss is None:
        return
    logits = torch.eye(4, options.new_vocab_size, device=target.device)
    best = torch.tensor([0, 0, 0, -1], device=target.device)
    everything = {STEP: 0, OUTSIDE: torch.zeros(4, device=target.device)}
    also = {name: everything[name] for name in named_in(loss)}
    own_loss_gradient_(logits, logits.softmax(-1).flip(0), best, best >= 0, loss, measure=False, also=also)


def refuse_one_sided(
    infos: Sequence[SampleInfo], options: TrainOptions, url: str, *, trains: bool, evaluates: bool
) -> None:
    """Raise a DataError if the conversations in `url` leave nothing to train on or nothing to evaluate on."""
    if trains:
        drawn_conversations([info for info in infos if info.split == "train"], options, url)
    if evaluates and not any(info.split == "heldout" and is_trainable(info) for info in infos):
        raise no_heldout(url)
