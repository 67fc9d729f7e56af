"""The two models over the engine's pool of pages, and the forwards a round makes with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from fledge.base.errors import EngineError
from fledge.draft.race import Draws
from fledge.draft.runner import DraftOutput, HeadRunner
from fledge.draft.tree import DraftTree
from fledge.engine.carried import Behind, Carried
from fledge.engine.layout import Layouts, RowLayout
from fledge.engine.penalties import allowed, edited
from fledge.engine.sampling import Sampler, choose, coins, draws
from fledge.engine.selection import Selection
from fledge.target.batch import Decoder, ForwardBatch, ForwardOutput

if TYPE_CHECKING:
    from fledge.engine.graphs import RecordedRounds
    from fledge.engine.native_plain import NativePlain
    from fledge.engine.native_round import NativeRound

AHEAD = 2  # a head's row at position p proposes x[p + 2]


class DrawnForward(Protocol):
    """A forward that chooses each wanted row's token, among those it may; see `NativeDecoder`'s."""

    def __call__(
        self,
        batch: ForwardBatch,
        kv: Tensor,
        filters: Tensor | None,
        coins: Tensor | None,
        allowed: Tensor | None,
        *,
        features: bool,
    ) -> ForwardOutput: ...


@dataclass(frozen=True)
class Models:
    """Target and head with their KV; page p of one pool and page p of the other belong to the same request."""

    decoder: Decoder
    kv: Tensor
    head: HeadRunner | None
    head_kv: Tensor | None
    pages: int  # in each pool
    sampler: Sampler | None  # the decoder's own, if it has one
    drawn: DrawnForward | None  # its forward that draws tokens itself, if it has one
    layouts: Layouts
    last_position: int  # the largest position with a rotary embedding
    topk: int  # first-level candidates carried from round to round
    native: NativeRound | None = None  # a round's calls, where both models have CPU kernels,
    native_plain: NativePlain | None = None  # and a plain round's, where the target has
    rounds: RecordedRounds | None = None  # CUDA graphs, where they are wanted

    def head_forward(
        self, rows: ForwardBatch, features: Tensor | None, hidden: Tensor | None, k: int, drawn: Draws | None
    ) -> DraftOutput:
        """See `HeadRunner.forward`."""
        if self.head is None or self.head_kv is None:
            raise EngineError("this needs a draft head; give the engine one")
        return self.head.forward(rows, self.head_kv, features=features, hidden=hidden, k=k, draws=drawn)


class TargetRows(NamedTuple):
    """What the target says about R rows."""

    chosen: Tensor  # [R] int64, the token after each row
    features: Tensor | None  # [R, 3 * Ht]
    logits: Tensor | None = None  # [R, V] float32, unprocessed; kept if some request wants log probabilities


def run_target(
    models: Models,
    now: Carried,
    layout: RowLayout,
    token_ids: Tensor,
    positions: Tensor,
    *,
    mask: Tensor | None,
    selection: Selection | None,
    features: bool,
    tree: DraftTree | None = None,
    picked: Tensor | None = None,
) -> TargetRows:
    """The target over window rows [R]; each row chooses its next token. `mask` None: causal.

    `tree`: what the rows are, if they are drafts; `picked` [R] int64: which of its B * N nodes; None: all.
    """
    rows = ForwardBatch(
        token_ids=token_ids.to(torch.int32),
        positions=positions.clamp(max=models.last_position),
        row_start=layout.row_start,
        prefix_length=now.length,
        window_offset=layout.no_offset,
        page_table=now.page_table,
        window_mask=mask,
    )
    position = positions if selection is None else positions + 1  # greedy rows toss no coins
    return choose_tokens(
        models, rows, position, selection=selection, features=features, tree=tree, picked=picked
    )


def choose_tokens(
    models: Models,
    rows: ForwardBatch,
    position: Tensor,
    *,
    selection: Selection | None,
    features: bool,
    tree: DraftTree | None = None,
    picked: Tensor | None = None,
) -> TargetRows:
    """A target forward and the token each wanted row yields; `position` [M] is where that token stands.

    Where every row takes its most likely token (`selection` None), and where tokens are drawn without edits other than
    wanted forms, the forward itself chooses, if it can, and no logits are copied.
    """
    decoder = models.decoder
    if selection is None:
        return _chosen(decoder.forward(rows, models.kv, logits="argmax", features=features))
    sampling = selection.sampling
    if sampling is not None and picked is not None:
        sampling = sampling.of(picked)
    if models.drawn is not None and selection.only_drawn:
        filters = tossed = may = None
        if sampling is not None:
            filters, tossed = sampling.filters, coins(sampling.seed_key, position)
        if selection.edits is not None:
            may = allowed(len(position), selection.edits, tree, picked)
        return _chosen(models.drawn(rows, models.kv, filters, tossed, may, features=features))
    out = decoder.forward(rows, models.kv, logits="logits", features=features)
    if out.logits is None:
        raise EngineError("the decoder returned no logits; report this as a bug of its backend")
    keep = selection.logprobs is not None
    logits = out.logits
    if selection.edits is not None:
        logits = edited(logits, position, selection.edits, tree, picked, keep=keep)
    chosen = choose(logits, sampling, position, models.sampler)
    return TargetRows(chosen, out.features, out.logits if keep else None)


def _chosen(out: ForwardOutput) -> TargetRows:
    if out.argmax is None:
        raise EngineError("the decoder returned no tokens; report this as a bug of its backend")
    return TargetRows(out.argmax, out.features)


def run_head(
    models: Models,
    now: Carried,
    layout: RowLayout,
    positions: Tensor,
    token_ids: Tensor,
    features: Tensor | None,
    last: Tensor,
    selection: Selection | None,
) -> DraftOutput:
    """Extend the head by the R `positions` of `layout`, from each request's length on; `last` [B] rows propose.

    token_ids [R] are each position's NEXT token, features [R, 3 * Ht] the position's own. `selection`: how one row of
    logits per request chooses.
    """
    rows = ForwardBatch(
        token_ids=token_ids.to(torch.int32),
        positions=positions.clamp(max=models.last_position),
        row_start=layout.row_start,
        prefix_length=now.length - now.head_start,
        window_offset=layout.no_offset,
        page_table=now.head_pages,
        logit_rows=last.to(torch.int32),
    )
    drawn = None if selection is None else draws(selection.sampling, positions.index_select(0, last) + AHEAD)
    return models.head_forward(rows, features, None, models.topk, drawn)


def run_head_rows(models: Models, behind: Behind, last: Tensor) -> DraftOutput:
    """Extend the head by any number of positions per request; `last` [M] are the rows that propose."""
    now = behind.carried
    rows = ForwardBatch(
        token_ids=behind.tokens.to(torch.int32),
        positions=behind.positions.clamp(max=models.last_position),
        row_start=behind.row_start,
        prefix_length=behind.start - now.head_start,
        window_offset=torch.zeros_like(behind.start),
        page_table=now.head_pages,
        logit_rows=last,
    )
    return models.head_forward(rows, behind.features, None, models.topk, None)


def draft_step(
    models: Models,
    now: Carried,
    layout: RowLayout,
    token_ids: Tensor,
    level: int,
    offset: Tensor,
    *,
    mask: Tensor | None,
    hidden: Tensor,
    topk: int,
    selection: Selection | None,
) -> DraftOutput:
    """The head over one level of the trees, K nodes [B * K] each: nodes of depth d stand at position L + d - 1.

    `selection`: how K rows of logits per request choose.
    """
    position = (now.length + level).clamp_(max=models.last_position)
    rows = ForwardBatch(
        token_ids=token_ids.to(torch.int32),
        positions=position.repeat_interleave(topk) if topk > 1 else position,
        row_start=layout.row_start,
        prefix_length=now.length - now.head_start,
        window_offset=offset,
        page_table=now.head_pages,
        window_mask=mask,
    )
    drawn = None if selection is None else draws(selection.sampling, rows.positions + AHEAD)
    return models.head_forward(rows, None, hidden, topk, drawn)
