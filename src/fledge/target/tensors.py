"""Tensors of a checkpoint's files by Llama's names: `TensorSource` for safetensors, `GgufSource` for GGUF."""

from __future__ import annotations

import ctypes
import mmap
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from fledge.base.errors import TargetError
from fledge.sources.files import weight_files
from fledge.target.blocks import packed_size
from fledge.target.matrix import Matrix, Quantization
from fledge.target.mxfp4 import dequantise

_MAPPINGS = Path("/proc/self/maps")


class StoredTensors:
    """The tensors of safetensors files, whichever shard they are in: views of mapped files, read as they are used."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises a TargetError for a truncated or foreign file."""
        self._handles: dict[str, Any] = {}
        for file in files:
            handle = _open(file)
            self._handles.update(dict.fromkeys(handle.keys(), handle))
        self._places = {str(file.resolve()) for file in files}

    @property
    def names(self) -> list[str]:
        return list(self._handles)

    def read(self, name: str) -> Tensor:
        """The tensor as its file holds it."""
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor

    def release(self) -> None:
        """Let the system take back the files' pages that have been read; it reads them again if they are used.

        Only what Linux lists as a mapping of these files: a tensor that safetensors has copied would become zeros.
        """
        if not _MAPPINGS.exists():
            return
        libc: Any = ctypes.CDLL(None)
        for line in _MAPPINGS.read_text("utf-8").splitlines():
            addresses, *_, name = line.split(maxsplit=5)
            if name in self._places:
                start, stop = (int(address, 16) for address in addresses.split("-"))
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)


def _open(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="pt")
    except Exception as error:  # safetensors has a type of its own
        raise TargetError(f"{file} isn't a whole safetensors file ({error}): download it again") from error


class TensorSource(ABC):
    """Tensors by the name they have in a Llama, whichever file they are in, checked for their shape.

    `names`: what the checkpoint calls parts of these names, where it has others. `quantization`: how matrices are made
    smaller as they are read; None leaves them as the file holds them, "none" expands them to `dtype`.
    """

    def __init__(
        self,
        place: Path,
        names: Mapping[str, str],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        quantization: Quantization | None = None,
    ) -> None:
        self.place = place  # a folder, or a GGUF file
        self.dtype, self.device = dtype, torch.device(device)
        self._names, self._quantization = names, quantization

    def own_name(self, name: str) -> str:
        """The checkpoint's name."""
        return ".".join(self._names.get(part, part) for part in name.split("."))

    @abstractmethod
    def __contains__(self, name: str) -> bool: ...

    @abstractmethod
    def read(self, name: str, *shape: int) -> Tensor:
        """The tensor in the requested dtype and on the requested device; a TargetError for a quantised one."""

    @abstractmethod
    def _matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """A matrix as its file holds it."""

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """A matrix as its file holds it, or as `quantization` says, in main memory."""
        matrix = self._matrix(name, rows, columns)
        if self._quantization is None:
            return matrix
        if self._quantization == "none":
            return Matrix.of(matrix.dequantise(self.dtype))
        try:
            quantised = matrix.quantised(self._quantization)
        except ValueError as error:
            raise TargetError(
                f"{self.own_name(name)} in {self.place} {error}: leave quantization out"
            ) from error
        self.release()
        return quantised

    def packed_bytes(self, weights: int, lm_head: int) -> float:
        """Memory of so many weights, the lm_head's among them, as the CPU kernels keep them."""
        if self._quantization in ("q8_0", "q4_0"):
            return packed_size(self._quantization.upper()) * weights
        screen = packed_size("Q8_0") * lm_head  # a copy of a bfloat16 lm_head
        return packed_size("BF16") * weights + screen

    @abstractmethod
    def release(self) -> None:
        """Let what has been read leave memory; it is read again if it is used."""

    def read_mxfp4(self, name: str, count: int, rows: int, columns: int) -> Tensor:
        """Matrices [count, rows, columns], one at a time: on the way each takes a few times the memory."""
        raise TargetError(f"{name} isn't read from {self.place}: use the model's safetensors checkpoint")


class SafetensorsSource(TensorSource):
    """Tensors of a folder's safetensors files, whichever shard they are in."""

    def __init__(
        self,
        folder: Path,
        names: Mapping[str, str],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        quantization: Quantization | None = None,
    ) -> None:
        super().__init__(folder, names, dtype, device, quantization)
        files = weight_files(folder)
        if not files:
            raise TargetError(
                f"{folder} lacks some or all safetensors weights: download or save the model again"
            )
        self._stored = StoredTensors(files)
        self._stored_names = {  # in a multimodal checkpoint the text model has a prefix
            name.removeprefix("language_model.").replace("model.language_model.", "model.", 1): name
            for name in self._stored.names
        }

    def __contains__(self, name: str) -> bool:
        return self.own_name(name) in self._stored_names

    def release(self) -> None:
        self._stored.release()

    def read(self, name: str, *shape: int) -> Tensor:
        return self._read_float(name, *shape).to(device=self.device, dtype=self.dtype)

    def _matrix(self, name: str, rows: int, columns: int) -> Matrix:
        tensor = self._read_float(name, rows, columns)
        return Matrix.of(tensor.float() if tensor.dtype.itemsize > 4 else tensor)

    def _read_float(self, name: str, *shape: int) -> Tensor:
        name = self.own_name(name)
        tensor = self._read_stored(name, *shape)
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise TargetError(
                f"{name} in {self.place} is quantised, {str(tensor.dtype).removeprefix('torch.')} without its scale: "
                "use the checkpoint in bfloat16"
            )
        return tensor

    def read_mxfp4(self, name: str, count: int, rows: int, columns: int) -> Tensor:
        name = self.own_name(name)
        out = torch.empty(count, rows, columns, dtype=self.dtype, device=self.device)
        blocks = self._read_stored(f"{name}_blocks", count, rows, columns // 32, 16)
        scales = self._read_stored(f"{name}_scales", count, rows, columns // 32)
        if columns % 32 or blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
            raise TargetError(
                f"{name} in {self.place} isn't in MXFP4 as OpenAI writes it, bytes of blocks of 32: use the "
                "checkpoint in bfloat16"
            )
        for matrix in range(count):
            out[matrix] = dequantise(blocks[matrix].to(self.device), scales[matrix].to(self.device))
        return out

    def _read_stored(self, name: str, *shape: int) -> Tensor:
        """The tensor as the file holds it, checked for its shape."""
        if name not in self._stored_names:
            raise TargetError(f"{self.place} has no tensor {name}: download or save the model again")
        tensor = self._stored.read(self._stored_names[name])
        if tuple(tensor.shape) != shape:
            raise TargetError(
                f"{name} in {self.place} has shape {tuple(tensor.shape)}, but config.json says {shape}: "
                "download or save the model again"
            )
        return tensor
