"""Matrices in the kernels' own form: packed some rows at a time, so that hardly more than the result is in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fledge.native import ops
from fledge.native.abi import MOST_PARTS, PANEL
from fledge.target.matrix import Matrix

_CHUNK = 1 << 20  # weights packed at once


def packed(matrix: Matrix | Tensor) -> ops.Weight:
    """A matrix as the kernels multiply it: in codes as its file holds it, in bf16 if it holds numbers.

    Parts that no weight has beside one another, such as numbers beside codes, become bf16 together.
    """
    matrix = matrix if isinstance(matrix, Matrix) else Matrix.of(matrix.detach())
    formats = _formats(matrix) or [ops.Format(matrix.shape[0])]
    weight = ops.Weight(matrix.columns, formats)
    start = 0
    for rows in [part.rows for part in formats]:
        for first, last in _chunks(start, start + rows, matrix.columns):
            codes = matrix.codes(first, last) if weight.coded else None
            if codes is None:
                weight.pack_numbers(first, matrix.rows(slice(first, last)).dequantise(torch.bfloat16))
            else:
                weight.pack_codes(first, codes.values, codes.scale, codes.minimum)
        start += rows
    return weight


def _chunks(first: int, stop: int, columns: int) -> Iterator[tuple[int, int]]:
    """Rows first .. stop in runs of whole panels."""
    step = max(1, _CHUNK // columns // PANEL) * PANEL
    for start in range(first, stop, step):
        yield start, min(start + step, stop)


def interleaved(gate_up: Matrix | Tensor) -> Matrix:
    """Gate and up rows [2 * I, H] in turn, 16 of each: a panel has 16 gates beside their ups."""
    matrix = gate_up if isinstance(gate_up, Matrix) else Matrix.of(gate_up.detach())
    index = torch.arange(matrix.shape[0]).view(2, -1, PANEL // 2).transpose(0, 1).flatten()
    return matrix.rows(index)


def _formats(matrix: Matrix) -> list[ops.Format]:
    """The formats of a packed weight's parts; empty if it has to be bf16."""
    formats: list[ops.Format] = []
    start = 0
    for part in matrix.parts:
        codes = matrix.codes(start, start + 1)
        if codes is None or start % PANEL:
            return []
        start += len(part.rows)
        groups = PANEL // codes.group
        formats.append(ops.Format(len(part.rows), codes.bits, groups, codes.minimum is not None, codes.zero))
    return formats if len(formats) <= MOST_PARTS else []


def screen_of(lm_head: ops.Weight) -> ops.Screen:
    """The 8-bit copy of an lm_head in bf16 that finds a row's token without reading all of it; see `screen.h`."""
    rows, columns = lm_head.shape
    screen = ops.Screen(columns, rows)
    for first, stop in _chunks(0, rows, columns):
        numbers = lm_head.rows(first, stop)
        codes = Matrix.of(numbers).quantised("q8_0").codes(0, len(numbers))
        assert codes is not None
        screen.pack(first, numbers, codes.values, codes.scale, codes.dequantise())
    return screen
