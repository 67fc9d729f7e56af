"""The metadata of a GGUF file and the list of its tensors, read without its weights and vocabulary.

gguf's own reader makes an array of each token, which takes seconds. Format and keys:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fledge.base.errors import TargetError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_LENGTH = struct.Struct("<Q")
_VERSIONS = (2, 3)
_LONGEST = 1024  # longer arrays are vocabularies, which transformers reads
_TEMPLATE = "tokenizer.chat_template"


class GgufTensor(NamedTuple):
    """Where a tensor lies, and in which form."""

    file: Path
    bytes: NDArray[np.uint8]  # of the whole file
    offset: int
    type: int  # ggml's number of its block type
    shape: tuple[int, ...]  # rows first, as torch has it; blocks are cut from the last dimension


class GgufHeader:
    """One file's metadata and tensor list. Raises a TargetError for a file that is broken."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            with file.open("rb") as stream:  # private: torch wants arrays that could be written to
                self.maps = [mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)]
            self._bytes = np.frombuffer(self.maps[0], dtype=np.uint8)
            self._read(_Cursor(self._bytes.data))
        except (OSError, ValueError, OverflowError, struct.error) as error:
            with file.open("rb") as stream:
                kind = "isn't a whole GGUF file" if stream.read(4) == b"GGUF" else "is no GGUF file"
            why = "it ends within its header" if isinstance(error, struct.error) else error
            raise TargetError(f"{file} {kind} ({why}): download it again") from error

    def release(self) -> None:
        """Let the system take back the pages that have been read; it reads them again if they are used."""
        for mapped in self.maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def _read(self, cursor: _Cursor) -> None:
        if bytes(self._bytes[:4]) != b"GGUF":
            raise ValueError("other first bytes")
        cursor.at = 4
        if (version := cursor.number("I")) not in _VERSIONS:
            raise ValueError(f"version {version}, not {' or '.join(map(str, _VERSIONS))}")
        tensors, fields = cursor.number("Q"), cursor.number("Q")
        for _ in range(fields):
            key, kind = cursor.string(), cursor.number("I")
            self.metadata[key] = cursor.value(kind)  # None for a vocabulary
        found = []
        for _ in range(tensors):
            name, dimensions = cursor.string(), cursor.number("I")
            shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
            if not shape:
                raise ValueError(f"{name} has no dimensions")
            found.append((name, shape, cursor.number("I"), cursor.number("Q")))
        self.digest = hashlib.sha256(self._bytes[: cursor.at].data).hexdigest()
        alignment = int(self.metadata.get("general.alignment") or 32)
        start = math.ceil(cursor.at / alignment) * alignment
        for name, shape, kind, offset in found:
            self.tensors[name] = GgufTensor(self.file, self._bytes, start + offset, kind, shape)

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def value(self, name: str, default: Any = None) -> Any:
        """The value of one of the architecture's own keys, such as `block_count`, or `default`."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    @property
    def templates(self) -> dict[str, str]:
        """Named chat templates, such as `tool_use`, and `default`; empty if there are no named ones."""
        names = self.metadata.get(f"{_TEMPLATE}s") or []
        found = {name: self.metadata.get(f"{_TEMPLATE}.{name}") for name in names}
        named = {str(name): str(text) for name, text in found.items() if text}
        default = self.metadata.get(_TEMPLATE)
        return {"default": default, **named} if named and default else named


class _Cursor:
    """Numbers and strings, one behind the other. Raises a ValueError or struct.error where the file ends."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 0

    def number(self, code: str) -> Any:
        value = struct.unpack_from(f"<{code}", self._data, self.at)[0]
        self.at += struct.calcsize(code)
        return value

    def string(self) -> str:
        first = self.at + 8
        self.skip_strings(1)
        return str(self._data[first : self.at], "utf-8")

    def skip_strings(self, count: int) -> None:
        at = self.at
        for _ in range(count):
            at += 8 + _LENGTH.unpack_from(self._data, at)[0]
        if at > len(self._data):
            raise ValueError("it ends within a string")
        self.at = at

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            if kind not in _NUMBERS:
                raise ValueError(f"a value of type {kind}")
            number = self.number(_NUMBERS[kind])
            return float(f"{number:.7g}") if kind == _FLOAT32 else number  # 0.1, not 0.10000000149
        kind, count = self.number("I"), self.number("Q")
        if kind in _NUMBERS:
            values = np.frombuffer(self._data, np.dtype(f"<{_NUMBERS[kind]}"), count, self.at)
            self.at += values.nbytes
            return values.tolist() if count <= _LONGEST else None
        if kind == _STRING and count > _LONGEST:
            self.skip_strings(count)
            return None
        return [self.value(kind) for _ in range(count)]
