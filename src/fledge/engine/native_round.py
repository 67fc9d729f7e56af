"""A round in one C++ call, where target and head run on the CPU kernels (`native/round.cpp`, `native/draft.cpp`).

A verify reads all weights, after which nothing of Python is in the processor's caches: a torch operation that takes
5 us takes 30 to 60 then. So a round is one call, with the head (`NativeRound.round`) or without (`NativeRound.lookup`).
Where logits are wanted, only draft and extend are calls, and Python runs the verify between them. The results are those
of the functions of the same names in round.py.

A call writes all it knows of the draft trees into one buffer, a `NativeDraft`. Most of that is for the planner, which
takes it apart later.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, byref, c_double, c_int64, c_void_p
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.cpu import NativeHeadRunner
from fledge.draft.runner import HeadRunner
from fledge.draft.tree import DraftTree
from fledge.engine.carried import Carried, RunningBatch
from fledge.engine.lookup import LONGEST, Proposal
from fledge.engine.native_plain import NativePlain, drawing_of, recent_of
from fledge.engine.planner.plan import RoundPlan, Terms
from fledge.engine.selection import Drawing
from fledge.engine.shapes import TreeShape
from fledge.native import abi
from fledge.native.build import library
from fledge.native.ops import address
from fledge.target.batch import Decoder
from fledge.target.cpu import NativeDecoder


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


class NativeDraft:
    """A round's draft trees and all that is known of them (see `outcome.Drafts`).

    A call wrote everything into one buffer; each part is cut out of it when it is first asked for.
    """

    def __init__(self, requests: int, bound: TreeShape) -> None:
        """Room for trees within `bound`."""
        self._requests, self._bound = requests, bound
        copied, most = bound.lookup, requests * bound.nodes
        integers = requests * (copied + 3) + 6 * most
        floats = integers + -(-(requests * (copied + bound.candidates) + most) // 2)
        smalls = floats + -(-(requests + 1 + 2 * most) // 2)
        # One buffer for int64, then float32 and int32, of which two fit an int64.
        self._room = torch.empty(smalls, dtype=torch.int64)
        self._begins = integers, floats
        at = self._room.data_ptr()
        self.raw = abi.Drafts(at, at + 8 * integers, at + 8 * floats)

    @property
    def rows(self) -> int:
        """R, of all nodes, are verified."""
        return int(self.raw.rows)

    @property
    def shape(self) -> TreeShape:
        """As verified."""
        return self._bound.cut(self.raw.levels, self.raw.nodes)

    @property
    def counts(self) -> Tensor:
        """[B] int64, nodes of each request below the root."""
        begin = self._requests * (self._bound.lookup + 1)
        return self._room[begin : begin + self._requests]

    @cached_property
    def tree(self) -> DraftTree:
        """N nodes per request."""
        ids, parents, depths, ancestors = self._whole[3:7]
        columns = ids, parents, depths, ancestors, self._probabilities[2]
        return DraftTree(*(column.view(self._requests, self.raw.nodes) for column in columns))

    @cached_property
    def levels(self) -> list[Tensor]:
        """Per drafted level: [B, C] cumulative log probabilities."""
        scores = self._probabilities[1].view(self._requests, -1)
        return list(scores.split_with_sizes([*self._grown, self._bound.lookup], 1)[:-1])

    @cached_property
    def proposal(self) -> Proposal | None:
        """Prompt lookup's."""
        if not self._bound.lookup:
            return None
        proposed, matched = self._whole[:2]
        return Proposal(
            proposed.view(self._requests, -1), self._probabilities[0].view(self._requests, -1), matched
        )

    @cached_property
    def ready(self) -> VerifyRows:
        """The rows of the verify."""
        picked, masks, first = self._whole[7:]
        row_start, tokens, positions = _sections(
            self._room[self._begins[1] :].view(torch.int32), [self._requests + 1, self.rows, self.rows]
        )
        return VerifyRows(row_start, first, picked, tokens, positions, masks)

    @property
    def _grown(self) -> list[int]:
        topk = self._bound.topk
        return [topk if level == 0 else topk**2 for level in range(self.raw.levels)]

    @cached_property
    def _whole(self) -> list[Tensor]:
        """The int64 parts, as in round.h: proposed, matched, counts, the tree's four, picked, masks, first."""
        requests, all_nodes = self._requests, self._requests * self.raw.nodes
        copies = requests * self._bound.lookup
        sizes = [copies, requests, requests, *[all_nodes] * 4, self.rows, self.rows, requests]
        return _sections(self._room, sizes)

    @cached_property
    def _probabilities(self) -> list[Tensor]:
        """The float32 parts: the proposals', the candidates', the tree's."""
        requests, copied = self._requests, self._bound.lookup
        candidates = sum(self._grown) + copied
        sizes = [requests * copied, requests * candidates, requests * self.raw.nodes]
        return _sections(self._room[self._begins[0] :].view(torch.float32), sizes)


class NativeOutcome(NamedTuple):
    """What a round did."""

    drafted: NativeDraft
    emitted: Tensor  # as in `Outcome`,
    path: Tensor  # too
    draft: float  # seconds
    verify: float
    accept: float


class DraftInputs(NamedTuple):
    """All that a call needs to draft."""

    now: Carried
    bound: TreeShape
    terms: Terms | None  # None: trees are grown to their bound, whatever they promise
    log_rates: Tensor  # see `MatchRates.log_rates`
    speculates: Tensor | None  # [B] bool; None: all do
    drawing: Drawing | None

    @classmethod
    def of(cls, batch: RunningBatch, plan: RoundPlan) -> DraftInputs:
        """Of the running batch, by its plan."""
        rates, speculates = plan.match_rates.log_rates(batch.device), batch.speculating().mask
        return cls(batch.view(), plan.bound, plan.terms(), rates, speculates, batch.selection.drawing())


class _Room:
    """Buffers that a call writes a round's accepted tokens into."""

    def __init__(self, requests: int, bound: TreeShape) -> None:
        widest = bound.reach + 1
        self._requests = requests
        self._emitted = torch.empty(requests * (1 + widest), dtype=torch.int64)
        self._path = torch.empty(requests * widest, dtype=torch.int64)
        self.raw = abi.Accepted(self._emitted.data_ptr(), self._path.data_ptr())

    def outcome(self, made: NativeDraft) -> NativeOutcome:
        """What the call wrote."""
        requests, width = self._requests, self.raw.width
        emitted, path = self._emitted[: requests * (1 + width)], self._path[: requests * width]
        return NativeOutcome(
            made,
            emitted.view(requests, 1 + width),
            path.view(requests, width),
            self.raw.draft,
            self.raw.verify,
            self.raw.accept,
        )


class NativeRound(NativePlain):
    """The calls of one engine's rounds."""

    def __init__(
        self, decoder: NativeDecoder, kv: Tensor, head: NativeHeadRunner, head_kv: Tensor, last_position: int
    ) -> None:
        super().__init__(decoder, kv, last_position, head, head_kv)
        self._last: tuple[TreeShape | None, Terms | None, abi.DraftTerms] = None, None, abi.DraftTerms()
        self._draft: Callable[..., None] = library().fledge_draft
        self._round: Callable[..., None] = library().fledge_round
        self._lookup: Callable[..., None] = library().fledge_lookup_round
        self._extend: Callable[..., None] = library().fledge_extend
        self._extend.argtypes = [c_void_p] * 8 + [c_int64] * 2

    def draft(self, given: DraftInputs) -> NativeDraft:
        """See `round.draft`."""
        made = NativeDraft(len(given.now.length), given.bound)
        self._draft(*map(byref, (*self._inputs(given), made.raw)))
        return made

    def round(self, given: DraftInputs) -> NativeOutcome:
        """See `round.speculative_round`: `draft`, then verify, accept and extend; what is carried is written to."""
        requests, bound = len(given.now.length), given.bound
        made, room = NativeDraft(requests, bound), _Room(requests, bound)
        self._round(*map(byref, (*self._inputs(given), made.raw, room.raw)))
        return room.outcome(made)

    def lookup(self, given: DraftInputs, *, keep: bool) -> NativeOutcome | None:
        """See `round.lookup_round`; None, and nothing done, if no copy is worth it. `keep`: as in `plain`."""
        requests, bound = len(given.now.length), given.bound
        made, room = NativeDraft(requests, bound), _Room(requests, bound)
        self._lookup(*map(byref, (*self._inputs(given), made.raw, room.raw, recent_of(given.now, keep))))
        return None if made.raw.nodes == 1 else room.outcome(made)

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
        drawn, carried = drawing_of(drawing), self._view(now)
        self._extend(
            addressof(self._models), addressof(carried), addressof(drawn),
            emits.data_ptr(), path.data_ptr(), emitted.data_ptr(), first_row.data_ptr(), features.data_ptr(),
            path.shape[1], move,
        )  # fmt: skip

    def _inputs(
        self, given: DraftInputs
    ) -> tuple[abi.RoundModels, abi.CarriedState, abi.DraftTerms, abi.Drawing]:
        return self._models, self._view(given.now), self._bounds(given), drawing_of(given.drawing)

    def _bounds(self, given: DraftInputs) -> abi.DraftTerms:
        """The plan as the kernels read it, kept while the next rounds have the same plan."""
        bound, terms = given.bound, given.terms
        last_bound, last_terms, wanted = self._last
        if bound != last_bound or terms is not last_terms:
            wanted = abi.DraftTerms(bound.depth, bound.topk, bound.nodes, bound.lookup, LONGEST)
            if terms is not None:
                points = len(terms.rows)
                wanted.calibration = (c_double * len(terms.calibration))(*terms.calibration)
                wanted.next = (c_double * len(terms.next_levels))(*terms.next_levels)
                wanted.known, wanted.costs = (
                    (c_int64 * points)(*terms.rows),
                    (c_double * points)(*terms.costs),
                )
                wanted.step, wanted.points = terms.step, points
            self._last = bound, terms, wanted
        wanted.log_rates, wanted.speculates = given.log_rates.data_ptr(), address(given.speculates)
        return wanted


def native_round(
    decoder: Decoder, kv: Tensor, head: HeadRunner | None, head_kv: Tensor | None, last_position: int
) -> NativeRound | None:
    """The calls, where both models have CPU kernels; None elsewhere."""
    if head_kv is None or not isinstance(decoder, NativeDecoder) or not isinstance(head, NativeHeadRunner):
        return None
    return NativeRound(decoder, kv, head, head_kv, last_position)


def _sections(buffer: Tensor, sizes: list[int]) -> list[Tensor]:
    """Consecutive parts of a flat tensor."""
    return list(buffer.split_with_sizes([*sizes, len(buffer) - sum(sizes)])[:-1])
