"""A head that starts from random weights, under the target's output or by itself.

With Muon and little data a copy of the target's last layer is a worse start than random weights: see docs/train.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fledge.draft import DraftVocabulary, Head, HeadConfig, HeadMetadata, HeadWeights
from fledge.draft.head import weight_shapes
from fledge.target import Target


def random_head(
    target: Target,
    vocabulary: DraftVocabulary,
    *,
    keep_output: bool = False,
    fc_norm: bool = False,
    norm_output: bool = False,
) -> Head:
    """The shapes of `Head.from_target`; matrices normal with variance 1 / inputs, norms 1. The same every time.

    `keep_output`: the final norm and the lm_head are the target's.
    """
    config = HeadConfig.for_target(target.config, len(vocabulary), fc_norm=fc_norm, norm_output=norm_output)
    generator = torch.Generator().manual_seed(0)
    source = target.ends
    kept: dict[str, Tensor] = {}
    if keep_output:
        rows = source.lm_head[vocabulary.token_ids.to(source.lm_head.device)]
        kept = {"norm": source.norm.float().cpu().clone(), "lm_head": rows.float().cpu()}

    def fresh(name: str, shape: tuple[int, ...]) -> Tensor:
        if name == "fc_norms" or len(shape) == 1:
            return torch.ones(shape)
        return torch.empty(shape).normal_(std=1 / math.sqrt(shape[1]), generator=generator)

    shapes = weight_shapes(config)
    weights = kept | {name: fresh(name, shape) for name, shape in shapes.items() if name not in kept}
    return Head(config, HeadWeights(**weights, d2t=vocabulary.d2t), HeadMetadata.of(target))
