"""A conversation of given tokens."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.data import Conversation


def conversation(
    name: str,
    prompt: Sequence[int],
    answer: Sequence[int],
    split: str = "train",
    category: str = "chat",
    temperature: float = 0.0,
) -> Conversation:
    """One prompt and its answer."""
    return Conversation(
        conversation_id=name,
        prompt_id=f"p-{name}",
        source="self",
        category=category,
        token_ids=[*prompt, *answer],
        loss_mask=[False] * len(prompt) + [True] * len(answer),
        turn_starts=[0, len(prompt)],
        temperature=temperature,
        finish_reason="stop",
        split=split,
    )
