"""Running prompts: chunks of several requests laid end to end in one forward of the target, then one of the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.base.errors import EngineError
from fledge.draft.runner import DraftOutput
from fledge.engine.carried import RunningBatch
from fledge.engine.forwards import Models, choose_tokens
from fledge.engine.logprobs import PathLogprobs, path_logprobs
from fledge.engine.phases import PhaseClock
from fledge.engine.pool import PADDING_PAGE
from fledge.engine.request import Request
from fledge.engine.selection import request_selection
from fledge.target.batch import ForwardBatch


class PrefillChunk(NamedTuple):
    """Tokens start..stop-1 of a request's context, to be run in one forward."""

    request: Request
    start: int
    stop: int
    pages: tuple[int, ...]  # the request's when the chunk was scheduled

    @property
    def finishes(self) -> bool:
        """True if the request's next token comes out of this chunk."""
        return self.stop == self.request.prefill_length


class FirstTokens(NamedTuple):
    """What a prefill sends to the host: the tokens of those F requests whose prompts are done."""

    chosen: Tensor | None  # [F] int64; None: nobody's is
    logprobs: PathLogprobs | None


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
    """The head over the same positions, each with the token that follows it; one proposal row per chunk."""
    last = done.rows.row_start[1:] - 1
    following = following_tokens(chunks, done).to(torch.int32)
    rows = _head_rows(done.rows, [chunk.request.head_start for chunk in chunks], models.decoder.page_size)
    rows = rows._replace(token_ids=following, logit_rows=last)
    return models.head_forward(rows, done.features, None, models.topk, None)


def _head_rows(rows: ForwardBatch, starts: Sequence[int], page_size: int) -> ForwardBatch:
    """The same rows over the heads' KV, which begins at these positions, page borders, of each request."""
    if not any(starts):
        return rows
    before = torch.tensor(starts, dtype=torch.int32, device=rows.prefix_length.device)
    pages = rows.page_table.shape[1]
    column = torch.arange(pages, device=before.device) + before[:, None] // page_size
    return rows._replace(
        prefix_length=rows.prefix_length - before,
        page_table=rows.page_table.gather(1, column.clamp_(max=pages - 1)),
    )


def following_tokens(chunks: Sequence[PrefillChunk], done: Prefilled) -> Tensor:
    """[R] int64, the token behind each row; behind a prompt's last row it is the one just chosen."""
    tokens: list[int] = []
    chosen: list[int] = []  # the rows behind which the F first tokens stand
    for chunk in chunks:
        tokens += chunk.request.context(chunk.start + 1, chunk.stop + (not chunk.finishes))
        if chunk.finishes:
            chosen.append(len(tokens))
            tokens.append(0)
    following = torch.tensor(tokens, device=done.rows.token_ids.device)
    if done.chosen is not None:
        following[torch.tensor(chosen, device=following.device)] = done.chosen
    return following


def _rows(models: Models, chunks: Sequence[PrefillChunk]) -> ForwardBatch:
    device = models.decoder.device
    lengths = [chunk.stop - chunk.start for chunk in chunks]
    tokens = [token for chunk in chunks for token in chunk.request.context(chunk.start, chunk.stop)]
    pages = np.full((len(chunks), max(len(chunk.pages) for chunk in chunks)), PADDING_PAGE, np.int32)
    for number, chunk in enumerate(chunks):
        pages[number, : len(chunk.pages)] = chunk.pages
    positions = np.concatenate([np.arange(chunk.start, chunk.stop, dtype=np.int32) for chunk in chunks])
    return ForwardBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int32, device=device),
        positions=torch.from_numpy(positions).to(device),
        row_start=torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)).to(device),
        prefix_length=torch.tensor([chunk.start for chunk in chunks], dtype=torch.int32, device=device),
        window_offset=torch.zeros(len(chunks), dtype=torch.int32, device=device),
        page_table=torch.from_numpy(pages).to(device),
    )


class Joining(NamedTuple):
    """A request whose prompt is done and that takes part in the next round."""

    chunk: int  # its number among the prefill's chunks
    place: int  # and among those that finish
    request: Request
    pages: tuple[int, ...]  # the request's now


class PrefillRun:
    """One prefill on the lane: the target over the chunks, then the head, then rows for those whose prompts are done.

    These are two tasks, so that the host has the first tokens before the head has run.
    """

    def __init__(
        self,
        models: Models,
        batch: RunningBatch,
        chunks: Sequence[PrefillChunk],
        clock: PhaseClock,
        *,
        follow: bool,
    ) -> None:
        """`follow`: some request speculates, so that the target's features are needed."""
        self._models, self._batch, self._chunks, self._clock = models, batch, chunks, clock
        self._follow = follow
        self._done: Prefilled | None = None

    def target(self) -> FirstTokens:
        """The target over all chunks."""
        self._clock.start()
        self._done = done = prefill_target(self._models, self._chunks, features=self._follow)
        self._clock.lap("prefill")
        # A copy for the host: `join` still reads the original.
        chosen = None if done.chosen is None else done.chosen.clone()
        return FirstTokens(chosen, done.logprobs)

    def join(self, joining: Sequence[Joining], *, head: bool) -> None:
        """The head over all chunks (without `head` it catches up later), and rows in the batch for the `joining`."""
        self._clock.start()
        done, batch, first = self._done, self._batch, self._batch.size
        if done is None:
            raise EngineError(
                "a prompt's end was prefilled before its beginning; report this as a bug of the engine"
            )
        self._done = None
        for one in joining:
            if done.chosen is not None:
                batch.append(one.request, one.pages, done.chosen[one.place])
        if head:
            proposed = prefill_head(self._models, self._chunks, done)
            if joining:
                picked = torch.tensor([one.chunk for one in joining], device=self._models.decoder.device)
                batch.set_first(
                    list(range(first, batch.size)), *(tensor.index_select(0, picked) for tensor in proposed)
                )
        elif done.features is not None:
            following = following_tokens(self._chunks, done)
            ends = np.cumsum([0] + [chunk.stop - chunk.start for chunk in self._chunks])
            for row, one in enumerate(joining, start=first):
                rows = slice(ends[one.chunk], ends[one.chunk + 1])
                batch.start_behind(row, following[rows], done.features[rows])
        self._clock.lap("prefill")
