"""A plain round in one C++ call, where the target runs on the CPU kernels; with the result of `round.plain_round`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof, byref, c_double, c_int32, c_int64, c_void_p
from functools import partial

import torch
from torch import Tensor

from fledge.draft.cpu import NativeHeadRunner
from fledge.engine.carried import Carried
from fledge.engine.selection import Drawing
from fledge.native import abi
from fledge.native.build import library, short_calls
from fledge.target.batch import Decoder
from fledge.target.cpu import NativeDecoder


class NativePlain:
    """The calls of one engine's rounds that need no head."""

    def __init__(
        self,
        decoder: NativeDecoder,
        kv: Tensor,
        last_position: int,
        head: NativeHeadRunner | None = None,
        head_kv: Tensor | None = None,
    ) -> None:
        c = decoder.config
        self._held = decoder, head, kv, head_kv
        self._models = abi.RoundModels(
            decoder.pointer,
            None if head is None else head.pointer,
            None if head_kv is None else head_kv.data_ptr(),
            kv.data_ptr(), kv.shape[1], last_position, c.num_layers, c.num_kv_heads, c.head_dim,
        )  # fmt: skip
        self._carried: dict[tuple[int, int], abi.CarriedState] = {}
        self._plain: Callable[..., float] = library().fledge_plain_round
        self._plain.argtypes = [c_void_p] * 5
        self._plain.restype = c_double
        self._forget: Callable[..., None] = short_calls().fledge_forget
        self._forget.argtypes = [c_void_p, c_void_p, c_int64]

    def plain(self, now: Carried, drawing: Drawing | None, *, keep: bool) -> tuple[Tensor, float]:
        """See `round.plain_round`: [B, 2] int64, ones and tokens, and the target's seconds.

        What is carried is written to; `keep`: also what a head that falls behind needs.
        """
        emitted = torch.empty(len(now.length), 2, dtype=torch.int64)
        models, carried, drawn = byref(self._models), byref(self._view(now)), byref(drawing_of(drawing))
        return emitted, self._plain(models, carried, drawn, byref(recent_of(now, keep)), emitted.data_ptr())

    def forget(self, pages: Sequence[int]) -> Callable[[], object]:
        """A call that clears these pages of both pools, to be made on the lane.

        Attention reads whole pages and gives entries that aren't the request's the weight 0. This zeroes any finite
        value but not a NaN, which would pass from one request to all that ever get its pages.
        """
        ids = (c_int32 * len(pages))(*pages)
        return partial(self._forget, addressof(self._models), ids, len(pages))

    def _view(self, now: Carried) -> abi.CarriedState:
        key = now.length.data_ptr(), len(now.length)
        found = self._carried.get(key)
        if found is None:
            sizes = (
                len(now.length),
                now.page_table.shape[1],
                now.first_token_ids.shape[1],
                now.history.shape[1],
            )
            tensors = (
                now.length, now.bonus, now.page_table, now.head_start, now.head_pages,
                now.first_token_ids, now.first_log_probs, now.hidden, now.history,
            )  # fmt: skip
            found = self._carried[key] = abi.CarriedState(*sizes, *(tensor.data_ptr() for tensor in tensors))
        return found


def native_plain(decoder: Decoder, kv: Tensor, last_position: int) -> NativePlain | None:
    """The call, where the target has CPU kernels; None elsewhere."""
    return NativePlain(decoder, kv, last_position) if isinstance(decoder, NativeDecoder) else None


def recent_of(now: Carried, keep: bool) -> abi.Recent:
    """It points into `now`; all null without `keep`."""
    tokens, features = now.recent_tokens, now.recent_features
    if not keep:
        return abi.Recent()
    return abi.Recent(tokens.data_ptr(), features.data_ptr(), tokens.shape[1])


def drawing_of(drawing: Drawing | None) -> abi.Drawing:
    """It points into `drawing`; None: null pointers."""
    return (
        abi.Drawing() if drawing is None else abi.Drawing(drawing.filters.data_ptr(), drawing.keys.data_ptr())
    )
