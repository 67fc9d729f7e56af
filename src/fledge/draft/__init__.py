"""The running part of a draft head: weights, vocabulary and forward. Heads as files are in `fledge.heads`.

Files:

    weights.py      all tensors of a head, with a drawing of the architecture
    config.py       its sizes and provenance; vocabulary.py: the tokens it can propose
    runner.py       its forward over a paged KV pool, in torch; cpu.py: on the CPU kernels
    race.py         how a sampled token is chosen, which the head can predict; race_triton.py: on a GPU
    tree.py         a batch of draft trees
"""

from fledge.draft.config import HeadConfig, HeadMetadata
from fledge.draft.runner import DraftOutput, HeadRunner, TorchHeadRunner
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
