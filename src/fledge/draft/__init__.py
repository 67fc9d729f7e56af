"""The running part of a draft head: weights, vocabulary and forward. Heads as files are in `fledge.heads`.

Files:

    description.py  a head's sizes, switches and tensors, described once, with a drawing of the architecture
    provenance.py   where it comes from; options.py: sizes of a new one; vocabulary.py: tokens it can propose
    runner.py       its forward over a paged KV pool, in torch; cpu.py: on the CPU kernels
    race.py         how a sampled token is chosen, which the head can predict; race_triton.py: on a GPU
    tree.py         a batch of draft trees
"""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.draft.description import HeadConfig as HeadConfig
    from fledge.draft.description import HeadWeights as HeadWeights
    from fledge.draft.provenance import HeadMetadata as HeadMetadata
    from fledge.draft.provenance import HeadParts as HeadParts
    from fledge.draft.runner import DraftOutput as DraftOutput
    from fledge.draft.runner import HeadRunner as HeadRunner
    from fledge.draft.runner import TorchHeadRunner as TorchHeadRunner
    from fledge.draft.tree import DraftTree as DraftTree
    from fledge.draft.vocabulary import DraftVocabulary as DraftVocabulary
    from fledge.draft.vocabulary import count_generated as count_generated
else:
    __getattr__ = on_first_use(__name__)
