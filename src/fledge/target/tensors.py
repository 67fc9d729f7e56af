"""Tensors of a checkpoint's safetensors files, by Llama's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from fledge.base.errors import TargetError
from fledge.sources.files import weight_files
from fledge.target.matrix import Matrix
from fledge.target.mxfp4 import dequantise


def open_weights(file: Path) -> Any:
    """A safetensors file, whose tensors are read one by one. Raises a TargetError for a truncated or foreign one."""
    try:
        return safe_open(str(file), framework="pt")
    except Exception as error:  # safetensors has a type of its own
        raise TargetError(f"{file} isn't a whole safetensors file ({error}): download it again") from error


class TensorSource:
    """Tensors by the name they have in a Llama, whichever shard they are in, checked for their shape.

    `names`: what the checkpoint calls parts of these names, where it has others.
    """

    def __init__(
        self, folder: Path, names: Mapping[str, str], dtype: torch.dtype, device: torch.device | str
    ) -> None:
        files = weight_files(folder)
        if not files:
            raise TargetError(
                f"{folder} lacks some or all safetensors weights: download or save the model again"
            )
        self._folder, self._names = folder, names
        self._dtype, self._device = dtype, torch.device(device)
        self._tensors: dict[str, tuple[Any, str]] = {}
        for file in files:
            handle = open_weights(file)
            stored: list[str] = list(handle.keys())
            for name in stored:  # in a multimodal checkpoint the text model has a prefix
                plain = name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)
                self._tensors[plain] = handle, name

    def __contains__(self, name: str) -> bool:
        return self._own_name(name) in self._tensors

    def _own_name(self, name: str) -> str:
        return ".".join(self._names.get(part, part) for part in name.split("."))

    def read(self, name: str, *shape: int) -> Tensor:
        """The tensor in the requested dtype and on the requested device; a TargetError for a quantised one."""
        name = self._own_name(name)
        tensor = self._read_stored(name, *shape)
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise TargetError(
                f"{name} in {self._folder} is quantised, {str(tensor.dtype).removeprefix('torch.')} without its scale: "
                "use the checkpoint in bfloat16"
            )
        return tensor.to(device=self._device, dtype=self._dtype)

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """A matrix as the file holds it; a TargetError as `read` raises it."""
        return Matrix.of(self.read(name, rows, columns))

    def read_mxfp4(self, name: str, count: int, rows: int, columns: int) -> Tensor:
        """Matrices [count, rows, columns], one at a time: on the way each takes a few times the memory."""
        name = self._own_name(name)
        out = torch.empty(count, rows, columns, dtype=self._dtype, device=self._device)
        blocks = self._read_stored(f"{name}_blocks", count, rows, columns // 32, 16)
        scales = self._read_stored(f"{name}_scales", count, rows, columns // 32)
        if columns % 32 or blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
            raise TargetError(
                f"{name} in {self._folder} isn't in MXFP4 as OpenAI writes it, bytes of blocks of 32: use the "
                "checkpoint in bfloat16"
            )
        for matrix in range(count):
            out[matrix] = dequantise(blocks[matrix].to(self._device), scales[matrix].to(self._device))
        return out

    def _read_stored(self, name: str, *shape: int) -> Tensor:
        """The tensor as the file holds it, checked for its shape."""
        if name not in self._tensors:
            raise TargetError(f"{self._folder} has no tensor {name}: download or save the model again")
        handle, stored_name = self._tensors[name]
        tensor: Tensor = handle.get_tensor(stored_name)
        if tuple(tensor.shape) != shape:
            raise TargetError(
                f"{name} in {self._folder} has shape {tuple(tensor.shape)}, but config.json says {shape}: "
                "download or save the model again"
            )
        return tensor
