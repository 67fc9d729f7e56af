"""What a round does before and after its verify in one C++ call each, where target and head run on the CPU kernels.

A verify reads all weights, after which nothing of Python is in the processor's caches: a torch operation that takes
5 us takes 30 to 60 then. The calls do what `draft` and `extend` in round.py do, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import POINTER, Structure, addressof, byref, c_double, c_int, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.cpu import NativeHeadRunner
from fledge.draft.runner import HeadRunner
from fledge.draft.tree import DraftTree
from fledge.engine.carried import Carried
from fledge.engine.layout import TreeShape
from fledge.engine.lookup import LONGEST, Proposal
from fledge.engine.plans import Terms
from fledge.engine.rows import Drawing
from fledge.native.build import library
from fledge.native.ops import address
from fledge.target.batch import Decoder
from fledge.target.cpu import NativeDecoder


class _Models(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("target", "head", "head_kv", "kv")),
        *((name, c_int64) for name in ("pages", "last_position")),
        *((name, c_int) for name in ("layers", "kv_heads", "head_dim")),
    ]


class _Carried(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("requests", "pages", "topk", "known")),
        *((name, c_void_p) for name in ("length", "bonus", "page_table", "head_start", "head_pages")),
        *((name, c_void_p) for name in ("first_token_ids", "first_log_probs", "hidden", "history")),
    ]


class _Drawing(Structure):
    _fields_ = [("filters", c_void_p), ("keys", c_void_p)]


class _Terms(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("depth", "topk", "nodes", "lookup", "longest")),
        ("log_rates", c_void_p),
        ("speculates", c_void_p),
        ("calibration", POINTER(c_double)),
        ("next", POINTER(c_double)),
        ("known", POINTER(c_int64)),
        ("costs", POINTER(c_double)),
        ("step", c_double),
        ("points", c_int64),
    ]


class _Drafts(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("integers", "floats", "smalls")),
        *((name, c_int64) for name in ("levels", "nodes", "rows")),
        ("seconds", c_double),
    ]


class _Drafted(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("token_ids", "parents", "depths", "picked", "masks", "first")),
        *((name, c_void_p) for name in ("row_start", "tokens", "positions", "speculates")),
        *((name, c_int64) for name in ("nodes", "rows", "width")),
    ]


class _Accepted(Structure):
    _fields_ = [("emitted", c_void_p), ("path", c_void_p), ("verify", c_double), ("accept", c_double)]


class VerifyRows(NamedTuple):
    """The R rows of a verify."""

    row_start: Tensor  # [B + 1] int32
    first_row: Tensor  # [B] int64
    picked: Tensor  # [R] int64, which of the B * N nodes they are
    tokens: Tensor  # [R] int32
    positions: Tensor  # [R] int32
    masks: Tensor  # [R] int64

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `round.verify` takes."""
        return self.tokens, self.positions, self.masks


class NativeDraft(NamedTuple):
    """Trees, and all that is known of them."""

    tree: DraftTree
    levels: list[Tensor]  # per drafted level: [B, C] cumulative log probabilities
    proposal: Proposal | None
    rows: VerifyRows
    seconds: float  # of the draft steps


class Finished(NamedTuple):
    """What was accepted of trees, by requests; see `Outcome`."""

    emitted: Tensor  # [B, 1 + D + 1] int64
    path: Tensor  # [B, D + 1] int64
    verify: float  # seconds
    accept: float


class NativeRound:
    """The calls of one engine's rounds."""

    def __init__(
        self, decoder: NativeDecoder, kv: Tensor, head: NativeHeadRunner, head_kv: Tensor, last_position: int
    ) -> None:
        c = decoder.config
        self._held = decoder, kv, head, head_kv
        self._models = _Models(
            decoder.pointer, head.pointer, head_kv.data_ptr(), kv.data_ptr(), kv.shape[1], last_position,
            c.num_layers, c.num_kv_heads, c.head_dim,
        )  # fmt: skip
        self._carried: dict[tuple[int, int], _Carried] = {}
        self._last: tuple[TreeShape | None, Terms | None, _Terms] = None, None, _Terms()
        self._draft: Callable[..., None] = library().fledge_draft
        self._finish: Callable[..., None] = library().fledge_finish
        self._extend: Callable[..., None] = library().fledge_extend
        self._extend.argtypes = [c_void_p] * 8 + [c_int64] * 2

    def draft(
        self,
        now: Carried,
        bound: TreeShape,
        terms: Terms | None,
        log_rates: Tensor,
        speculates: Tensor | None,
        drawing: Drawing | None,
    ) -> NativeDraft:
        """See `round.draft`; `terms` None: trees are grown to their bound, whatever they promise."""
        requests, copied = len(now.length), bound.lookup
        most = requests * bound.nodes
        integers = torch.empty(requests * (copied + 3) + 6 * most, dtype=torch.int64)
        floats = torch.empty(requests * (copied + bound.candidates) + most, dtype=torch.float32)
        smalls = torch.empty(requests + 1 + 2 * most, dtype=torch.int32)
        out = _Drafts(integers.data_ptr(), floats.data_ptr(), smalls.data_ptr())
        wanted = self._bounds(bound, terms)
        wanted.log_rates, wanted.speculates = log_rates.data_ptr(), address(speculates)
        drawn = _drawing(drawing)
        self._draft(byref(self._models), byref(self._view(now)), byref(wanted), byref(drawn), byref(out))

        nodes, rows, copies = out.nodes, out.rows, requests * copied
        grown = [bound.topk] + [bound.topk**2] * (out.levels - 1)
        count, all_nodes = sum(grown) + copied, requests * nodes
        split = [copies, requests, requests, *[all_nodes] * 4, rows, rows, requests]
        proposed, matched, _, ids, parents, depths, ancestors, picked, masks, first = _sections(
            integers, split
        )
        rates, scores, log_probs = _sections(floats, [copies, requests * count, all_nodes])
        row_start, tokens, positions = _sections(smalls, [requests + 1, rows, rows])
        shape = requests, nodes
        tree = DraftTree(
            ids.view(shape),
            parents.view(shape),
            depths.view(shape),
            ancestors.view(shape),
            log_probs.view(shape),
        )
        return NativeDraft(
            tree,
            list(scores.view(requests, count).split_with_sizes([*grown, copied], 1)[:-1]),
            Proposal(proposed.view(requests, copied), rates.view(requests, copied), matched)
            if copied
            else None,
            VerifyRows(row_start, first, picked, tokens, positions, masks),
            out.seconds,
        )

    def finish(
        self,
        now: Carried,
        tree: DraftTree,
        rows: VerifyRows,
        speculates: Tensor | None,
        drawing: Drawing | None,
        width: int,
        *,
        chain: bool,
    ) -> Finished:
        """See `round._finish`: verify, accept and extend `width` - 1 nodes deep; what is carried is written to.

        `chain`: all trees are chains, so that no masks are needed and no node has to move.
        """
        requests, nodes = tree.token_ids.shape
        emitted = torch.empty(requests, 1 + width, dtype=torch.int64)
        path = torch.empty(requests, width, dtype=torch.int64)
        drafted = _Drafted(
            tree.token_ids.data_ptr(), tree.parents.data_ptr(), tree.depths.data_ptr(), rows.picked.data_ptr(),
            None if chain else rows.masks.data_ptr(), rows.first_row.data_ptr(), rows.row_start.data_ptr(),
            rows.tokens.data_ptr(), rows.positions.data_ptr(), address(speculates), nodes, len(rows.picked), width,
        )  # fmt: skip
        drawn, out = _drawing(drawing), _Accepted(emitted.data_ptr(), path.data_ptr())
        self._finish(byref(self._models), byref(self._view(now)), byref(drawn), byref(drafted), byref(out))
        return Finished(emitted, path, out.verify, out.accept)

    def extend(
        self,
        now: Carried,
        accepted: tuple[Tensor, Tensor, Tensor],
        first_row: Tensor,
        features: Tensor,
        drawing: Drawing | None,
        *,
        move: bool,
    ) -> None:
        """See `round.extend`: `accepted` as `accept` returns it; what is carried is written to."""
        emits, path, emitted = accepted
        drawn, carried = _drawing(drawing), self._view(now)
        self._extend(
            addressof(self._models), addressof(carried), addressof(drawn),
            emits.data_ptr(), path.data_ptr(), emitted.data_ptr(), first_row.data_ptr(), features.data_ptr(),
            path.shape[1], move,
        )  # fmt: skip

    def _bounds(self, bound: TreeShape, terms: Terms | None) -> _Terms:
        """What bounds a draft, of which a plan that is used again has the same."""
        last_bound, last_terms, wanted = self._last
        if bound == last_bound and terms is last_terms:
            return wanted
        wanted = _Terms(bound.depth, bound.topk, bound.nodes, bound.lookup, LONGEST)
        if terms is not None:
            points = len(terms.rows)
            wanted.calibration = (c_double * len(terms.calibration))(*terms.calibration)
            wanted.next = (c_double * len(terms.next_levels))(*terms.next_levels)
            wanted.known, wanted.costs = (c_int64 * points)(*terms.rows), (c_double * points)(*terms.costs)
            wanted.step, wanted.points = terms.step, points
        self._last = bound, terms, wanted
        return wanted

    def _view(self, now: Carried) -> _Carried:
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
            found = self._carried[key] = _Carried(*sizes, *(tensor.data_ptr() for tensor in tensors))
        return found


def native_round(
    decoder: Decoder, kv: Tensor, head: HeadRunner | None, head_kv: Tensor | None, last_position: int
) -> NativeRound | None:
    """The calls, where both models have CPU kernels; None elsewhere."""
    if head_kv is None or not isinstance(decoder, NativeDecoder) or not isinstance(head, NativeHeadRunner):
        return None
    return NativeRound(decoder, kv, head, head_kv, last_position)


def _drawing(drawing: Drawing | None) -> _Drawing:
    return _Drawing() if drawing is None else _Drawing(drawing.filters.data_ptr(), drawing.keys.data_ptr())


def _sections(buffer: Tensor, sizes: list[int]) -> list[Tensor]:
    """Consecutive parts of a flat tensor."""
    return list(buffer.split_with_sizes([*sizes, len(buffer) - sum(sizes)])[:-1])
