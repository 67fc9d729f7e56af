"""The steps of a round between its forwards, on a CPU, each as one call of C++ (`native/tree.cpp`).

At batch 1 such a step is arithmetic on a dozen numbers, and a single torch operation takes longer than all of it. Each
function here gives the result of the torch code of its caller, bit for bit. B requests, N nodes, C candidates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from ctypes import c_int32, c_int64, c_void_p
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.native import unavailable_reason
from fledge.native.build import short_calls

_INT64, _FLOAT = torch.int64, torch.float32


class Passed(NamedTuple):
    """The R positions that a round passed, as a head that falls behind will need them."""

    tokens: Tensor  # [R] int64, the token behind each
    features: Tensor  # [F, 3 * Ht]
    source: Tensor | None  # [R] int64, each position's row in `features`; None: row r is position r's
    positions: Tensor  # [R] int32
    row_start: Tensor  # [B + 1] int32, where each request's begin


class PathRows(NamedTuple):
    """The S rows on the accepted paths of B requests, end to end."""

    row_start: Tensor  # [B + 1] int32
    last: Tensor  # [B] int64, each request's last
    positions: Tensor  # [S] int32
    tokens: Tensor  # [S] int32, what follows each
    source: Tensor  # [S] int64, which of the verified rows it was
    old_slot: Tensor  # [S] int64, where its KV was written,
    new_slot: Tensor  # [S] int64, and where it belongs now


def runs_here(tensor: Tensor) -> bool:
    """Whether the C++ steps can be used for this tensor's batch."""
    return tensor.is_cpu and _available()


def reads_are_free(tensor: Tensor) -> bool:
    """Whether the host may look at a value without waiting for a device, so that shapes may follow values."""
    return tensor.is_cpu


def accept(
    tree: DraftTree, chosen: Tensor, width: int, speculates: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """See `round.accept`: how many each request emits [B], the path and what its nodes chose [B, width]."""
    requests, nodes = chosen.shape
    emits = torch.empty(requests, dtype=_INT64)
    path, emitted = torch.empty(requests, width, dtype=_INT64), torch.empty(requests, width, dtype=_INT64)
    inputs = (tree.token_ids, tree.parents, tree.depths, chosen, speculates)
    _call("fledge_accept", (*inputs, emits, path, emitted), requests, nodes, width)
    return emits, path, emitted


def select(
    token_ids: Tensor,
    scores: Tensor,
    depths: Tensor,
    expanded: Tensor,
    own: Tensor | None,
    counts: Tensor | None,
    *,
    topk: int,
    nodes: int,
) -> DraftTree:
    """See `TreeGrowth.select`: token_ids [B, 1 + C], scores [B, C], depths [1 + C], expanded [B, E].

    `own` [B, M] are the parents of the last M candidates; the others are `topk` to each of those expanded.
    """
    requests, candidates = scores.shape
    tree = DraftTree(*(torch.empty(requests, nodes, dtype=kind) for kind in (*[_INT64] * 4, _FLOAT)))
    _call(
        "fledge_select",
        (token_ids, scores, depths, expanded, own, counts, *tree),
        requests,
        candidates,
        expanded.shape[1],
        0 if own is None else own.shape[1],
        topk,
        nodes,
    )
    return tree


def verify_rows(tree: DraftTree, length: Tensor, picked: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """See `round.verify_rows`: tokens [R] int32, positions [R] int32, masks [R] int64."""
    requests, nodes = tree.token_ids.shape
    rows = requests * nodes if picked is None else len(picked)
    tokens, positions = torch.empty(rows, dtype=torch.int32), torch.empty(rows, dtype=torch.int32)
    masks = torch.empty(rows, dtype=_INT64)
    inputs = (tree.token_ids, tree.depths, tree.window_mask, length, picked)
    _call("fledge_verify_rows", (*inputs, tokens, positions, masks), rows, nodes)
    return tokens, positions, masks


def path_rows(
    accepted: tuple[Tensor, Tensor, Tensor],
    length: Tensor,
    first_row: Tensor,
    page_table: Tensor,
    page_size: int,
) -> PathRows:
    """See `round.path_rows`: `accepted` as `accept` returns it."""
    emits, path = accepted[0], accepted[1]
    requests, width = path.shape
    rows = sum(emits.tolist())
    found = PathRows(
        row_start=torch.empty(requests + 1, dtype=torch.int32),
        last=torch.empty(requests, dtype=_INT64),
        positions=torch.empty(rows, dtype=torch.int32),
        tokens=torch.empty(rows, dtype=torch.int32),
        source=torch.empty(rows, dtype=_INT64),
        old_slot=torch.empty(rows, dtype=_INT64),
        new_slot=torch.empty(rows, dtype=_INT64),
    )
    inputs = (*accepted, length, first_row, page_table)
    _call("fledge_path_rows", (*inputs, *found), requests, width, page_table.shape[1], page_size)
    return found


def advance(emits: Tensor, tokens: Tensor, length: Tensor, bonus: Tensor, history: Tensor) -> None:
    """See `RunningBatch.advance`; what is carried is written to."""
    _call("fledge_advance", (emits, tokens, length, bonus, history), *tokens.shape, history.shape[1])


def some_rows(counts: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `round.some_rows`: row_start [B + 1] int32, first row [B] int64, and which they are [R] int64."""
    row_start = torch.empty(len(counts) + 1, dtype=torch.int32)
    first, index = torch.empty_like(counts), torch.empty(sum(counts.tolist()), dtype=_INT64)
    _call("fledge_some_rows", (counts, row_start, first, index), len(counts), width)
    return row_start, first, index


def keep(passed: Passed, recent_tokens: Tensor, recent_features: Tensor) -> None:
    """See `RunningBatch.fall_behind`; what is carried is written to."""
    requests, kept = recent_tokens.shape
    row_bytes = passed.features.shape[1] * passed.features.element_size()
    _call("fledge_keep", (*passed, recent_tokens, recent_features), requests, kept, row_bytes)


def page_entry(
    pages: Sequence[int],
    tables: tuple[Tensor, Tensor, Tensor],
    row: int,
    start: int,
    size: int,
) -> Callable[[], None]:
    """See `RunningBatch.page_entry`: `pages` from number `start` on, of `size` tokens each, and all three tables."""
    page_table, head_pages, head_start = tables
    entries = (c_int32 * len(pages))(*pages)
    pointers = page_table.data_ptr(), head_pages.data_ptr(), head_start.data_ptr()
    sizes = row, page_table.shape[1], start, len(pages), size
    return partial(_kernel("fledge_enter_pages", 4, len(sizes)), entries, *pointers, *sizes)


class RowCopier:
    """Copies rows of tensors that have one per request; on any device."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """The tensors are contiguous, and stay where they are."""
        self._tensors = tensors
        self._places: Tensor | None = None
        if runs_here(tensors[0]):
            places = [(t.data_ptr(), t[0].numel() * t.element_size()) for t in tensors]
            self._places = torch.tensor(places, dtype=_INT64)

    def copy(self, row: int, over: int) -> None:
        """Copy one row of each over another."""
        if self._places is not None:
            _call("fledge_copy_row", (self._places,), len(self._tensors), row, over)
            return
        for tensor in self._tensors:
            tensor[over] = tensor[row]


def find_repeats(
    history: Tensor, last: Tensor, longest: int, count: int, log_rates: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `lookup.find`: the proposed tokens [B, count], their log probabilities, the lengths of the matches [B]."""
    requests, known = history.shape
    matched, tokens = torch.empty(requests, dtype=_INT64), torch.empty(requests, count, dtype=_INT64)
    log_probs = torch.empty(requests, count, dtype=_FLOAT)
    outputs = (matched, tokens, log_probs)
    _call("fledge_find_repeats", (history, last, log_rates, *outputs), requests, known, longest, count)
    return tokens, log_probs, matched


class MergeState(NamedTuple):
    """Each request's proposal, M tokens, and how many of its tokens the tree has; `raised` moves it on."""

    token_ids: Tensor  # [B, M] int64
    log_probs: Tensor  # [B, M] float32
    agreed: Tensor  # [B] int64: k, how many of its tokens the head proposed, too
    number: Tensor  # [B] int64, the candidate that is the last of these; 0, the root, if there is none
    score: Tensor  # [B] float32, that candidate's cumulative log probability


def raised(
    state: MergeState, level: int, tokens: Tensor, scores: Tensor, parents: Tensor | None, first: int
) -> Tensor:
    """See `ProposalMerge.raised`."""
    requests, candidates = scores.shape
    topk = candidates if parents is None else candidates // parents.shape[1]
    found = torch.empty(requests, candidates, dtype=_FLOAT)
    count = state.token_ids.shape[1]
    _call(
        "fledge_raise",
        (tokens, scores, parents, *state, found),
        requests, candidates, topk, count, level, first,
    )  # fmt: skip
    return found


class Frontier(NamedTuple):
    """The K nodes of each tree that are expanded next, best first."""

    token_ids: Tensor  # [B, K] int64
    scores: Tensor  # [B, K] float32, cumulative log probabilities
    mask: Tensor  # [B, K] int64, draft-window mask, own bit included
    numbers: Tensor  # [B, K] int64, as candidates
    rows: Tensor  # [B * K] int64, their parents' places in the frontier before, which has B * K


def frontier(children: Tensor, scores: Tensor, mask: Tensor, level: int) -> Frontier:
    """See `TreeGrowth.expand`: children and scores [B, K * K], the old frontier's mask; `level` counts from 0."""
    requests, topk = mask.shape
    ids, masks, numbers = (torch.empty(requests, topk, dtype=_INT64) for _ in range(3))
    rows = torch.empty(requests * topk, dtype=_INT64)
    found = Frontier(ids, torch.empty(requests, topk, dtype=_FLOAT), masks, numbers, rows)
    _call("fledge_frontier", (children, scores, mask, *found), requests, topk, level)
    return found


def share_out(
    scores: Tensor, calibration: Tensor | None, depths: Tensor | None, rows: Tensor, costs: Tensor, most: int
) -> Tensor:
    """See `ConfidentPlan.nodes`: how many of its candidates [B, C] are verified for each request [B], at most `most`.

    Probabilities are calibrated by depth, `calibration` [D + 1] float32 and `depths` [C], or trusted as they are.
    Verifying `rows` [P] int64 costs `costs` [P] float64 tokens.
    """
    counts = torch.empty(len(scores), dtype=_INT64)
    inputs = (scores, calibration, depths, rows, costs)
    _call("fledge_share_out", (*inputs, counts), *scores.shape, most, len(rows))
    return counts


def coins(key: Tensor, position: Tensor) -> Tensor:
    """See `sampling.coins`; both are [M] int64."""
    found = torch.empty_like(key)
    _call("fledge_coins", (key, position, found), len(key))
    return found


def open_mass(state: MergeState | None, level: int, frontier: Tensor) -> Tensor:
    """See `TreeGrowth.open_mass`, within rounding: [B] of the scores [B, K] of a level's frontier."""
    rates, agreed, score = (None, None, None) if state is None else (state[1], state[2], state[4])
    mass = torch.empty(len(frontier), dtype=_FLOAT)
    count = 0 if rates is None else rates.shape[1]
    _call("fledge_open_mass", (frontier, rates, agreed, score, mass), *frontier.shape, count, level)
    return mass


def slots(state: MergeState, candidates: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `ProposalMerge.slots`."""
    requests, count = state.token_ids.shape
    tokens, parents = (torch.empty(requests, count, dtype=_INT64) for _ in range(2))
    scores = torch.empty(requests, count, dtype=_FLOAT)
    _call("fledge_fill_slots", (*state, tokens, scores, parents), requests, count, candidates)
    return tokens, scores, parents


@functools.cache
def _available() -> bool:
    return not unavailable_reason()


def _call(name: str, tensors: tuple[Tensor | None, ...], *sizes: int) -> None:
    """Call a kernel that takes pointers, then sizes. What it writes to is contiguous."""
    held = [None if t is None else t.contiguous() for t in tensors]
    pointers = [None if t is None else t.data_ptr() for t in held]
    _kernel(name, len(pointers), len(sizes))(*pointers, *sizes)


@functools.cache
def _kernel(name: str, pointers: int, sizes: int) -> Callable[..., None]:
    found = getattr(short_calls(), name)
    found.argtypes = [c_void_p] * pointers + [c_int64] * sizes
    found.restype = None
    kernel: Callable[..., None] = found
    return kernel
