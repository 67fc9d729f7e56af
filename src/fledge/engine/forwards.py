"""The target over the engine's pool of pages: a forward, and the token that each wanted row yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fledge.base.errors import EngineError
from fledge.draft.tree import DraftTree
from fledge.engine.penalties import allowed, edited
from fledge.engine.rounds.tree import Verified
from fledge.engine.sampling import Sampler, choose, coins
from fledge.engine.selection import Selection
from fledge.target.batch import Decoder, ForwardBatch, ForwardOutput


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
        hidden: bool = False,
    ) -> ForwardOutput: ...


@dataclass(frozen=True)
class TargetForward:
    """A target and its KV."""

    decoder: Decoder
    kv: Tensor
    pages: int  # in the pool
    last_position: int  # the largest position with a rotary embedding
    sampler: Sampler | None = None  # the decoder's own, if it has one
    drawn: DrawnForward | None = None  # its forward that draws tokens itself, if it has one

    def choose_tokens(
        self,
        rows: ForwardBatch,
        position: Tensor,
        *,
        selection: Selection | None,
        features: bool,
        hidden: bool = False,
        tree: DraftTree | None = None,
        picked: Tensor | None = None,
    ) -> Verified:
        """A forward and the token each wanted row yields; `position` [M] is where that token stands.

        `tree`: what the rows are, if they are drafts; `picked` [R] int64: which of its B * N nodes; None: all.
        Where every row takes its most likely token (`selection` None), and where tokens are drawn without edits other
        than wanted forms, the forward itself chooses, if it can, and no logits are copied.
        """
        decoder = self.decoder
        if selection is None:
            return _chosen(decoder.forward(rows, self.kv, logits="argmax", features=features, hidden=hidden))
        sampling = selection.sampling
        if sampling is not None and picked is not None:
            sampling = sampling.of(picked)
        if self.drawn is not None and selection.only_drawn:
            filters = tossed = may = None
            if sampling is not None:
                filters, tossed = sampling.filters, coins(sampling.seed_key, position)
            if selection.edits is not None:
                may = allowed(len(position), selection.edits, tree, picked)
            return _chosen(self.drawn(rows, self.kv, filters, tossed, may, features=features, hidden=hidden))
        out = decoder.forward(rows, self.kv, logits="logits", features=features, hidden=hidden)
        if out.logits is None:
            raise EngineError("the decoder returned no logits; report this as a bug of its backend")
        keep = selection.logprobs is not None
        logits = out.logits
        if selection.edits is not None:
            logits = edited(logits, position, selection.edits, tree, picked, keep=keep)
        chosen = choose(logits, sampling, position, self.sampler)
        return Verified(chosen, out.features, out.logits if keep else None, out.hidden)


def _chosen(out: ForwardOutput) -> Verified:
    if out.argmax is None:
        raise EngineError("the decoder returned no tokens; report this as a bug of its backend")
    return Verified(out.argmax, out.features, hidden=out.hidden)
