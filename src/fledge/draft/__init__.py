"""The draft head: its weights, vocabulary, checkpoint forms, and how it runs."""

from fledge.draft.config import HeadConfig, HeadMetadata
from fledge.draft.head import Head, HeadWeights
from fledge.draft.runner import DraftOutput, DraftWeights, HeadRunner, TorchHeadRunner, head_runner
from fledge.draft.tree import DraftTree
from fledge.draft.vocabulary import DraftVocabulary, count_generated

__all__ = [
    "DraftOutput",
    "DraftTree",
    "DraftVocabulary",
    "DraftWeights",
    "Head",
    "HeadConfig",
    "HeadMetadata",
    "HeadRunner",
    "HeadWeights",
    "TorchHeadRunner",
    "count_generated",
    "head_runner",
]
