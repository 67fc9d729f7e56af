"""A head that starts from random weights, under the target's output or by itself.

With Muon and little data a copy of the target's last layer is a worse start than random weights: see docs/train.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from fledge.draft import DraftVocabulary, Head
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

    `keep_output`: the final norm and the lm_head stay the target's.
    """
    like = Head.from_target(target, vocabulary, fc_norm=fc_norm, norm_output=norm_output)
    generator = torch.Generator().manual_seed(0)

    def fresh(tensor: Tensor) -> Tensor:
        if tensor.dim() == 1:
            return torch.ones_like(tensor)
        return torch.empty_like(tensor).normal_(std=1 / math.sqrt(tensor.shape[1]), generator=generator)

    kept = {"fc_norms", "norm", "lm_head"} if keep_output else {"fc_norms"}
    named = {name: fresh(t) for name, t in like.weights.trainable().items() if name not in kept}
    return Head(like.config, replace(like.weights, **named), like.metadata)
