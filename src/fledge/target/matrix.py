"""A target's matrix as its file holds it: raw rows, which nothing computes with before they are used.

file -> Matrix (format, raw rows) -> rows selected, permuted, joined -> codes: the kernels' own form
                                                                    -> dequantised: torch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fledge.target.blocks import BLOCKS, FLOATS, quantise

Quantised = Literal["q8_0", "q4_0"]
Quantization = Literal["none", "q8_0", "q4_0"]  # "none" expands
_NAMES = {dtype: name for name, dtype in FLOATS.items()}
_CHUNK = 1 << 20  # weights expanded at once: temporary tensors stay in the caches


class Codes(NamedTuple):
    """Unsigned codes u of a matrix [N, K]: w = scale * (u - zero) - minimum, with scales for each group of inputs."""

    bits: int  # 4, 6 or 8: u < 2 ** bits
    group: int  # 32 or 16
    zero: int  # 0 where there is a minimum
    values: Tensor  # [N, K] uint8
    scale: Tensor  # [N, K / group] float16, rounded once
    minimum: Tensor | None  # [N, K / group] float16

    def dequantise(self) -> Tensor:
        """[N, K] float32."""
        values = self.values.view(*self.scale.shape, self.group).float()
        if self.zero:
            values -= self.zero
        values *= self.scale.unsqueeze(-1)
        if self.minimum is not None:
            values -= self.minimum.unsqueeze(-1)
        return values.view(self.values.shape)


class Part(NamedTuple):
    """Rows of one format."""

    format: str  # ggml's name
    rows: Tensor  # uint8 [n, bytes of a row], or [n, K] of a float type
    factor: float = 1.0  # of all weights


@dataclass(frozen=True)
class Matrix:
    """A weight [N, K], in one part or several below one another, as q and k beside v in a Q4_K_M file."""

    parts: tuple[Part, ...]
    columns: int

    @classmethod
    def of(cls, tensor: Tensor) -> Matrix:
        """A matrix of floating-point numbers."""
        return cls((Part(_NAMES[tensor.dtype], tensor),), tensor.shape[1])

    @classmethod
    def joined(cls, matrices: Sequence[Matrix]) -> Matrix:
        """Matrices below one another; neighbouring parts of one format become one."""
        parts: list[Part] = []
        for part in (part for matrix in matrices for part in matrix.parts):
            last = parts[-1] if parts else None
            if last is not None and (last.format, last.factor) == (part.format, part.factor):
                parts[-1] = last._replace(rows=torch.cat((last.rows, part.rows)))
            else:
                parts.append(part)
        return cls(tuple(parts), matrices[0].columns)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(len(part.rows) for part in self.parts), self.columns

    @property
    def formats(self) -> tuple[str, ...]:
        """Of the parts, in their order."""
        return tuple(part.format for part in self.parts)

    @property
    def bytes(self) -> int:
        """Of the raw rows."""
        return sum(part.rows.nbytes for part in self.parts)

    def equals(self, other: Matrix) -> bool:
        """The same formats with the same raw rows."""
        return self.formats == other.formats and all(
            torch.equal(own.rows, theirs.rows) for own, theirs in zip(self.parts, other.parts, strict=True)
        )

    def rows(self, index: Tensor | slice) -> Matrix:
        """The rows of a slice, without a copy, or those of an index, in its order."""
        if isinstance(index, slice):
            first, stop, step = index.indices(self.shape[0])
            if step != 1:
                return self.rows(torch.arange(first, stop, step))
            return Matrix(
                tuple(part._replace(rows=rows) for part, rows in self._within(first, stop)), self.columns
            )
        return Matrix.joined([Matrix((part,), self.columns) for part in self._selected(index)])

    def _within(self, first: int, stop: int) -> Iterator[tuple[Part, Tensor]]:
        start = 0
        for part in self.parts:
            rows = part.rows[max(first - start, 0) : max(stop - start, 0)]
            if len(rows):
                yield part, rows
            start += len(part.rows)

    def _selected(self, index: Tensor) -> Iterator[Part]:
        """For each run of the index within one part, that part with these rows."""
        ends = torch.tensor([len(part.rows) for part in self.parts]).cumsum(0)
        owners, runs = torch.unique_consecutive(torch.bucketize(index, ends, right=True), return_counts=True)
        for owner, run in zip(owners.tolist(), index.split(runs.tolist()), strict=True):
            part = self.parts[owner]
            start = int(ends[owner]) - len(part.rows)
            yield part._replace(rows=part.rows.index_select(0, run - start))

    def scaled(self, factor: float) -> Matrix:
        """All weights times `factor`, which is kept beside them."""
        if factor == 1.0:
            return self
        return replace(self, parts=tuple(part._replace(factor=part.factor * factor) for part in self.parts))

    def quantised(self, form: Quantised) -> Matrix:
        """Float parts as ggml quantises them. Raises a ValueError for other parts and sizes."""
        if self.columns % 32:
            raise ValueError(f"has {self.columns} columns, and blocks have 32")
        if odd := set(self.formats) - set(FLOATS):
            raise ValueError(f"is quantised already, in {min(odd)}")
        name = form.upper()

        def raw(part: Part) -> Part:
            step = max(1, _CHUNK // self.columns)
            blocks = [quantise(rows.float(), name) for rows in part.rows.contiguous().split(step)]
            return part._replace(format=name, rows=torch.cat(blocks))

        return replace(self, parts=tuple(raw(part) for part in self.parts))

    def codes(self, first: int, stop: int, device: torch.device | str | None = None) -> Codes | None:
        """Rows first to stop, which lie in one part, as codes, its factor in their scales; None for a float part."""
        ((part, rows),) = self._within(first, stop)
        if part.format in FLOATS:
            return None
        block = BLOCKS[part.format]
        rows = rows.to(device)
        values, scale, minimum = block.unpack(rows.reshape(-1, block.size))
        groups = (len(rows), self.columns // block.group)
        return Codes(
            block.bits,
            block.group,
            block.zero,
            values.reshape(len(rows), self.columns),
            (scale * part.factor).half().view(groups),
            None if minimum is None else (minimum * part.factor).half().view(groups),
        )

    def dequantise(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """The matrix as torch computes with it: what `codes` gives, float parts cast and then multiplied."""
        if len(self.parts) == 1 and (part := self.parts[0]).format in FLOATS and part.factor == 1.0:
            return part.rows.to(device=device, dtype=dtype)
        out = torch.empty(self.shape, dtype=dtype, device=device)
        step, start = max(1, _CHUNK // self.columns), 0
        for part in self.parts:
            own = Matrix((part,), self.columns)
            for first in range(0, len(part.rows), step):
                stop = min(first + step, len(part.rows))
                codes = own.codes(first, stop, device)
                if codes is None:
                    part_rows = part.rows[first:stop].to(device=device, dtype=dtype)
                    out[start + first : start + stop] = part_rows * part.factor
                else:
                    out[start + first : start + stop] = codes.dequantise()
            start += len(part.rows)
        return out
