"""The draft head: its weights, vocabulary, checkpoint forms, and how it runs.

Its files:

    head.py         the head itself, with a drawing: weights, how it starts from a target, whether it fits one
    config.py       its sizes and where it comes from; vocabulary.py: the tokens it can propose
    runner.py       its forward over a paged KV pool, in torch; cpu.py: on the CPU kernels; backend.py: which of them
    race.py         how a sampled token is decided, which the head can work out beforehand
    tree.py         a batch of draft trees
    checkpoint.py   head files; forms.py writes each engine's form, foreign.py reads them
    card.py         the model card of an exported head; hub.py pushes it
"""

from fledge.draft.backend import head_runner
from fledge.draft.config import HeadConfig, HeadMetadata
from fledge.draft.head import Head, HeadWeights
from fledge.draft.runner import DraftOutput, DraftWeights, HeadRunner, TorchHeadRunner
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
