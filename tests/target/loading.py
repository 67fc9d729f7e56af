"""A folder's weights as tensors."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fledge.target import DecoderConfig, DecoderWeights, load_weights
from fledge.target.source import open_source


def weights_of(
    folder: Path, dtype: torch.dtype = torch.bfloat16, config: DecoderConfig | None = None
) -> DecoderWeights[Tensor]:
    """All of them; `config`: another one than the folder's."""
    config = config or DecoderConfig.from_folder(folder)
    return load_weights(open_source(folder, config, dtype), config)
