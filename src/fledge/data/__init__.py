"""Prompts, and the target's answers to them: the training data."""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.data.conversations import (
        Conversation,
        ConversationStatistics,
        Split,
        conversation_shards,
        conversation_statistics,
        read_conversations,
    )
    from fledge.data.options import AnswerServerOptions, Opening, Progress, PromptOptions, RespondOptions
    from fledge.data.overlap import EvaluationIndex, read_evaluation_texts
    from fledge.data.privacy import PrivacyFilter, PrivacyOptions
    from fledge.data.prompt_store import PromptSummary, TrainingPrompt, prompt_summary, read_prompts
    from fledge.data.prompts import make_prompts, prompts_fingerprint
    from fledge.data.responses import RespondSummary, respond, respond_fingerprint
    from fledge.data.served import AnswerServer
    from fledge.data.sources import SourceOptions
else:
    __getattr__ = on_first_use(__name__)

__all__ = [
    "AnswerServer",
    "AnswerServerOptions",
    "Conversation",
    "ConversationStatistics",
    "EvaluationIndex",
    "Opening",
    "PrivacyFilter",
    "PrivacyOptions",
    "Progress",
    "PromptOptions",
    "PromptSummary",
    "RespondOptions",
    "RespondSummary",
    "SourceOptions",
    "Split",
    "TrainingPrompt",
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
