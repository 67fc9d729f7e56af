"""Prompts, and the target's answers to them: the training data."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fledge.data.conversations import (
        Conversation,
        ConversationStatistics,
        Split,
        conversation_shards,
        conversation_statistics,
        read_conversations,
    )
    from fledge.data.options import Opening, Progress, PromptOptions, RespondOptions, ServerOptions
    from fledge.data.overlap import EvaluationIndex, read_evaluation_texts
    from fledge.data.privacy import PrivacyFilter, PrivacyOptions
    from fledge.data.prompt_store import Prompt, PromptSummary, prompt_summary, read_prompts
    from fledge.data.prompts import make_prompts, prompts_fingerprint
    from fledge.data.responses import RespondSummary, respond, respond_fingerprint
    from fledge.data.served import AnswerServer
    from fledge.data.sources import SourceOptions

__all__ = [
    "AnswerServer",
    "Conversation",
    "ConversationStatistics",
    "EvaluationIndex",
    "Opening",
    "PrivacyFilter",
    "PrivacyOptions",
    "Progress",
    "Prompt",
    "PromptOptions",
    "PromptSummary",
    "RespondOptions",
    "RespondSummary",
    "ServerOptions",
    "SourceOptions",
    "Split",
    "conversation_shards",
    "conversation_statistics",
    "make_prompts",
    "prompt_summary",
    "prompts_fingerprint",
    "read_conversations",
    "read_evaluation_texts",
    "read_prompts",
    "respond",
    "respond_fingerprint",
]

_HOMES = {
    "fledge.data.conversations": (
        "Conversation",
        "ConversationStatistics",
        "Split",
        "conversation_shards",
        "conversation_statistics",
        "read_conversations",
    ),
    "fledge.data.options": ("Opening", "Progress", "PromptOptions", "RespondOptions", "ServerOptions"),
    "fledge.data.overlap": ("EvaluationIndex", "read_evaluation_texts"),
    "fledge.data.privacy": ("PrivacyFilter", "PrivacyOptions"),
    "fledge.data.prompt_store": ("Prompt", "PromptSummary", "prompt_summary", "read_prompts"),
    "fledge.data.prompts": ("make_prompts", "prompts_fingerprint"),
    "fledge.data.responses": ("RespondSummary", "respond", "respond_fingerprint"),
    "fledge.data.served": ("AnswerServer",),
    "fledge.data.sources": ("SourceOptions",),
}


def __getattr__(name: str) -> Any:
    """The public names, imported on first use: the privacy filter alone needn't wait for torch."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'fledge.data' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
