"""Prompts, and the target's answers to them: the training data."""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.data.conversations import Conversation as Conversation
    from fledge.data.conversations import ConversationStatistics as ConversationStatistics
    from fledge.data.conversations import conversation_statistics as conversation_statistics
    from fledge.data.conversations import read_conversations as read_conversations
    from fledge.data.options import AnswerServerOptions as AnswerServerOptions
    from fledge.data.options import Opening as Opening
    from fledge.data.options import Progress as Progress
    from fledge.data.options import PromptOptions as PromptOptions
    from fledge.data.options import RespondOptions as RespondOptions
    from fledge.data.overlap import EvaluationIndex as EvaluationIndex
    from fledge.data.overlap import read_evaluation_texts as read_evaluation_texts
    from fledge.data.privacy import PrivacyFilter as PrivacyFilter
    from fledge.data.privacy import PrivacyOptions as PrivacyOptions
    from fledge.data.prompt_store import PromptSummary as PromptSummary
    from fledge.data.prompt_store import TrainingPrompt as TrainingPrompt
    from fledge.data.prompt_store import prompt_summary as prompt_summary
    from fledge.data.prompt_store import read_prompts as read_prompts
    from fledge.data.prompts import make_prompts as make_prompts
    from fledge.data.prompts import prompts_fingerprint as prompts_fingerprint
    from fledge.data.responses import RespondSummary as RespondSummary
    from fledge.data.responses import respond as respond
    from fledge.data.responses import respond_fingerprint as respond_fingerprint
    from fledge.data.served import AnswerServer as AnswerServer
    from fledge.data.sources import SourceOptions as SourceOptions
else:
    __getattr__ = on_first_use(__name__)
