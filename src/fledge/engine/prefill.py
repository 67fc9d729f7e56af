"""Running prompts: chunks of several requests laid end to end in one forward of the target, then one of the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.draft.runner import DraftOutput
from fledge.engine.forwards import Models, choose_tokens
from fledge.engine.logprobs import PathLogprobs, path_logprobs
from fledge.engine.pool import PADDING_PAGE
from fledge.engine.request import Request
from fledge.engine.rows import request_selection
from fledge.errors import EngineError
from fledge.target.batch import ForwardBatch


class PrefillChunk(NamedTuple):
    """Tokens start..stop-1 of a request's context, to be run in one forward."""

    request: Request
    start: int
    stop: int

    @property
    def finishes(self) -> bool:
        """True if the request's next token comes out of this chunk."""
        return self.stop == self.request.prefill_length


class Prefilled(NamedTuple):
    """A target forward over chunks. F chunks finish."""

    rows: ForwardBatch
    features: Tensor | None  # [R, 3 * Ht]
    chosen: Tensor | None  # [F] int64, first tokens; None if no chunk finishes
    logprobs: PathLogprobs | None = None  # of the F first tokens


def prefill_target(models: Models, chunks: Sequence[PrefillChunk], *, features: bool) -> Prefilled:
    """The target over all chunks; those that finish yield a token each."""
    rows = _rows(models, chunks)
    last = [number for number, chunk in enumerate(chunks) if chunk.finishes]
    if not last:
        out = models.decoder.forward(rows, models.kv, logits="none", features=features)
        return Prefilled(rows, out.features, None)
    finishing = [chunks[number] for number in last]
    device = models.decoder.device
    wanted = rows._replace(logit_rows=(rows.row_start[1:] - 1)[torch.tensor(last, device=device)])
    requests = [chunk.request for chunk in finishing]
    selection = request_selection(requests, models.decoder.config.vocab_size, device)
    position = torch.tensor([chunk.stop for chunk in finishing], device=device)
    target = choose_tokens(models, wanted, position, selection=selection, features=features)
    logprobs = None
    if selection is not None and selection.logprobs is not None and target.logits is not None:
        logprobs = path_logprobs(target.logits, selection.logprobs, None, target.chosen[:, None])
    return Prefilled(rows, target.features, target.chosen, logprobs)


def prefill_head(models: Models, chunks: Sequence[PrefillChunk], done: Prefilled) -> DraftOutput:
    """The head over the same positions, each with the token that follows it; one proposal row per chunk.

    `hidden` [chunks, H] of the result holds those rows only.
    """
    if models.head is None or models.head_kv is None or done.features is None:
        raise EngineError(
            "prefilling a draft head needs a head and the target's features; give the engine a head"
        )
    following = [token for c in chunks for token in c.request.context(c.start + 1, c.stop + 1)]
    last = done.rows.row_start[1:] - 1
    rows = done.rows._replace(
        token_ids=torch.tensor(following, dtype=torch.int32, device=models.decoder.device), logit_rows=last
    )
    out = models.head.forward(rows, models.head_kv, features=done.features, hidden=None, k=models.topk)
    return out._replace(hidden=out.hidden.index_select(0, last))


def _rows(models: Models, chunks: Sequence[PrefillChunk]) -> ForwardBatch:
    device = models.decoder.device
    lengths = [chunk.stop - chunk.start for chunk in chunks]
    tokens = [token for chunk in chunks for token in chunk.request.context(chunk.start, chunk.stop)]
    pages = np.full((len(chunks), max(len(chunk.request.pages) for chunk in chunks)), PADDING_PAGE, np.int32)
    for number, chunk in enumerate(chunks):
        pages[number, : len(chunk.request.pages)] = chunk.request.pages
    positions = np.concatenate([np.arange(chunk.start, chunk.stop, dtype=np.int32) for chunk in chunks])
    return ForwardBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int32, device=device),
        positions=torch.from_numpy(positions).to(device),
        row_start=torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)).to(device),
        prefix_length=torch.tensor([chunk.start for chunk in chunks], dtype=torch.int32, device=device),
        window_offset=torch.zeros(len(chunks), dtype=torch.int32, device=device),
        page_table=torch.from_numpy(pages).to(device),
    )
