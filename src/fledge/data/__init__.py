"""Prompts, and the target's answers to them: the training data."""

from fledge.data.options import Opening, PromptOptions, RespondOptions

__all__ = ["Opening", "PromptOptions", "RespondOptions"]
