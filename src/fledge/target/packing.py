"""Matrices in the kernels' own form: packed some rows at a time, so that hardly more than the result is in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.native import ops
from fledge.target.matrix import Matrix

_PANEL = 32  # outputs of a panel; every part but the last has whole ones
_MOST_PARTS = 4  # of a packed weight
_CHUNK = 1 << 22  # weights packed at once


def packed(matrix: Matrix | Tensor) -> ops.Weight:
    """A matrix as the kernels multiply it: in codes as its file holds it, in bf16 if it holds numbers.

    Parts that no weight has beside one another, such as numbers beside codes, become bf16 together.
    """
    matrix = matrix if isinstance(matrix, Matrix) else Matrix.of(matrix.detach())
    formats = _formats(matrix)
    weight = ops.Weight(matrix.columns, formats or [ops.Format(matrix.shape[0])])
    step = max(1, _CHUNK // matrix.columns // _PANEL) * _PANEL
    start = 0
    for part in matrix.parts if formats else [None]:
        stop = matrix.shape[0] if part is None else start + len(part.rows)
        for first in range(start, stop, step):
            last = min(first + step, stop)
            codes = matrix.codes(first, last) if formats else None
            if codes is None:
                weight.pack_numbers(first, matrix.rows(slice(first, last)).dequantise(torch.bfloat16))
            else:
                weight.pack_codes(first, codes.values, codes.scale, codes.minimum)
        start = stop
    return weight


def interleaved(gate_up: Matrix | Tensor) -> Matrix:
    """Gate and up rows [2 * I, H] in turn, 16 of each: a panel has 16 gates beside their ups."""
    matrix = gate_up if isinstance(gate_up, Matrix) else Matrix.of(gate_up.detach())
    index = torch.arange(matrix.shape[0]).view(2, -1, _PANEL // 2).transpose(0, 1).flatten()
    return matrix.rows(index)


def _formats(matrix: Matrix) -> list[ops.Format]:
    """The formats of a packed weight's parts; empty if it has to be bf16."""
    formats: list[ops.Format] = []
    start = 0
    for part in matrix.parts:
        codes = matrix.codes(start, start + 1)
        if codes is None or start % _PANEL:
            return []
        start += len(part.rows)
        groups = _PANEL // codes.group
        formats.append(ops.Format(len(part.rows), codes.bits, groups, codes.minimum is not None, codes.zero))
    return formats if len(formats) <= _MOST_PARTS else []


def screen_of(lm_head: ops.Weight) -> ops.Screen:
    """The 8-bit copy of an lm_head in bf16 that finds a row's token without reading all of it; see `screen.h`."""
    rows, columns = lm_head.shape
    screen = ops.Screen(columns, rows)
    step = max(1, _CHUNK // columns // _PANEL) * _PANEL
    for first in range(0, rows, step):
        numbers = lm_head.rows(first, min(first + step, rows))
        codes = Matrix.of(numbers).quantised("q8_0").codes(0, len(numbers))
        assert codes is not None
        screen.pack(first, numbers, codes.values, codes.scale, codes.dequantise())
    return screen
