"""What of a draft head runs: its weights and vocabulary, and its forward. Heads as files are `fledge.heads`.

Its files:

    weights.py      all tensors of a head, with a drawing of what they do
    config.py       its sizes and where it comes from; vocabulary.py: the tokens it can propose
    runner.py       its forward over a paged KV pool, in torch; cpu.py: on the CPU kernels
    race.py         how a sampled token is decided, which the head can work out beforehand
    tree.py         a batch of draft trees
"""

from fledge.draft.config import HeadConfig, HeadMetadata
from fledge.draft.runner import DraftOutput, DraftWeights, HeadRunner, TorchHeadRunner
from fledge.draft.tree import DraftTree
from fledge.draft.vocabulary import DraftVocabulary, count_generated
from fledge.draft.weights import HeadParts, HeadWeights

__all__ = [
    "DraftOutput",
    "DraftTree",
    "DraftVocabulary",
    "DraftWeights",
    "HeadConfig",
    "HeadMetadata",
    "HeadParts",
    "HeadRunner",
    "HeadWeights",
    "TorchHeadRunner",
    "count_generated",
]
