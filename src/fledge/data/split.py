"""Choice of conversations held out for evaluation: decided by a hash of the prompt, so a prompt never changes sides.

A few prompts may all fall on one side. Then one prompt of the last shard is moved to the other: a head needs answers
to learn from and others to be evaluated on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fledge.base.storage import Manifest
from fledge.data.conversations import Answered, Split, is_trainable, read_conversations
from fledge.data.seeds import unit_interval


def split_of(prompt_id: str, heldout: float) -> Split:
    """The split of a prompt's conversations; `heldout` is the share of prompts kept out of training."""
    return "heldout" if _place(prompt_id) < heldout else "train"


def on_both_sides(last: Sequence[Answered], url: str, heldout: float) -> list[Answered]:
    """The answers of the last shard, adjusted so that neither split is empty if there are two prompts."""
    if not 0 < heldout < 1:
        return list(last)
    earlier = read_conversations(url) if Manifest.load(url).shards else ()
    existing = {c.split for c in earlier if is_trainable(len(c.token_ids), c.supervised_tokens)}
    usable = [a for a in last if any(_usable(a))]
    sides = existing | {split for a in usable for split in _usable(a)}
    if len(sides) != 1 or len(usable) + len(existing) < 2:
        return list(last)
    (side,) = sides
    nearest = max if side == "heldout" else min
    moved = nearest(usable, key=lambda a: _place(a.prompt_id))
    other: Split = "train" if side == "heldout" else "heldout"
    return [_moved(a, other) if a is moved else a for a in last]


def _usable(answered: Answered) -> Iterable[str]:
    """The splits of the conversations that training or evaluation can use."""
    conversations = answered.conversations
    return [c.split for c in conversations if is_trainable(len(c.token_ids), c.supervised_tokens)]


def _moved(answered: Answered, split: Split) -> Answered:
    return replace(answered, conversations=tuple(replace(c, split=split) for c in answered.conversations))


def _place(prompt_id: str) -> float:
    return unit_interval("split", prompt_id)
