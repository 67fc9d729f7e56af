"""A target's tensors, whichever kind of file holds them."""

from __future__ import annotations

from pathlib import Path

import torch

from fledge.sources.gguf import is_gguf
from fledge.target import families
from fledge.target.config import DecoderConfig
from fledge.target.matrix import Quantization
from fledge.target.tensors import SafetensorsSource, TensorSource


def open_source(
    place: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    quantization: Quantization | None = None,
) -> TensorSource:
    """The tensors of a folder of safetensors, or of a GGUF file."""
    family = families.find(config.architecture)
    if is_gguf(place):
        from fledge.target.gguf_tensors import GgufSource  # gguf takes a moment to import

        return GgufSource(place, family, dtype, device, quantization)
    return SafetensorsSource(place, family.tensor_names, dtype, device, quantization)
