"""Prefill: chunks of several requests' prompts in one forward of the target, then the drafter over the same rows.

    chunks       request 7: 0..63   request 8: 0..31   request 9: 200..263      laid end to end, R rows
    target()     a token for each of the F requests whose prompts end here
    join()       the drafter reads the rows, and requests whose prompts are done get rows in the running batch

These are two launches, so that the host has the first tokens before the drafter has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.base.device import to_device
from fledge.base.errors import EngineError
from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.drafter import Drafter, Prompts
from fledge.engine.forwards import TargetForward
from fledge.engine.logprobs import PathLogprobs, path_logprobs, token_logprobs
from fledge.engine.phases import PhaseClock
from fledge.engine.request import Request
from fledge.engine.selection import request_selection
from fledge.target.batch import PADDING_PAGE, ForwardBatch

_SCORED_ROWS = 128  # rows per forward for a prompt's log probabilities


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


class PrefillResult(NamedTuple):
    """First tokens of the F requests whose prompts are done, for the host."""

    chosen: Tensor | None  # [F] int64; None if no prompt is done
    logprobs: PathLogprobs | None
    features: Tensor | None = None  # [R, 3 * Ht] of all chunks, if the engine has a recorder


class Prefill:
    """One prefill."""

    def __init__(
        self,
        target: TargetForward,
        batch: RunningBatch,
        drafter: Drafter | None,
        chunks: Sequence[PrefillChunk],
        clock: PhaseClock,
        *,
        records: bool = False,
    ) -> None:
        """`drafter`: None if no request speculates. `records`: the result has the prompts' features."""
        self._target, self._batch, self._drafter, self._records = target, batch, drafter, records
        self._chunks, self._clock = chunks, clock
        self._last = [number for number, chunk in enumerate(chunks) if chunk.finishes]
        self._rows: ForwardBatch | None = None
        self._features: Tensor | None = None
        self._chosen: Tensor | None = None

    def target(self) -> PrefillResult:
        """The target over all chunks."""
        self._clock.start()
        wants_features = self._records or (self._drafter is not None and self._drafter.features)
        for chunk in self._chunks:
            if chunk.request.params.prompt_logprobs is not None:
                _score_prompt(self._target, chunk)
        self._rows = rows = chunk_rows(self._chunks, self._target.decoder.device)
        logprobs, chosen = None, None
        if self._last:
            logprobs, chosen = self._choose(rows, features=wants_features)
        else:
            decoder = self._target.decoder
            self._features = decoder.forward(
                rows, self._target.kv, logits="none", features=wants_features
            ).features
        self._clock.lap("prefill")
        return PrefillResult(chosen, logprobs, self._features if self._records else None)

    def _choose(self, rows: ForwardBatch, *, features: bool) -> tuple[PathLogprobs | None, Tensor]:
        """Run the rows; the first tokens, and their log probabilities if any are wanted."""
        target, device = self._target, self._target.decoder.device
        finishing = [self._chunks[number] for number in self._last]
        selection = request_selection(
            [chunk.request for chunk in finishing], target.decoder.config.vocab_size, device
        )
        ends = np.cumsum([chunk.stop - chunk.start for chunk in self._chunks], dtype=np.int32)
        logit_rows, position = to_device(
            device, ends[self._last] - 1, np.array([chunk.stop for chunk in finishing])
        )
        done = target.choose_tokens(
            rows._replace(logit_rows=logit_rows), position, selection=selection, features=features
        )
        self._features, self._chosen = done.features, done.chosen
        logprobs = None
        if selection is not None and selection.logprobs is not None and done.logits is not None:
            logprobs = path_logprobs(done.logits, selection.logprobs, None, done.chosen[:, None])
        return logprobs, done.chosen.clone()  # a copy for the host: `join` still reads the original

    def join(self, pages: Mapping[int, Sequence[int]], *, read: bool) -> None:
        """The drafter over all chunks (without `read` it catches up later), and rows in the batch.

        `pages`: of the requests that get rows, by the number of their chunk.
        """
        self._clock.start()
        rows, chosen, batch, drafter = self._rows, self._chosen, self._batch, self._drafter
        if rows is None:
            raise EngineError(
                "a prompt's end was prefilled before its beginning; report this as a bug of the engine"
            )
        first = batch.size
        for number, own in pages.items():
            assert chosen is not None
            batch.append(self._chunks[number].request, own, chosen[self._last.index(number)])
        if drafter is not None:
            prompts = Prompts(
                rows,
                following_tokens(self._chunks, chosen, rows.token_ids.device),
                self._features,
                starts=[chunk.request.draft_start for chunk in self._chunks],
                stops=[chunk.stop for chunk in self._chunks],
                sizes=[chunk.stop - chunk.start for chunk in self._chunks],
            )
            made = drafter.prefill(prompts) if read else None
            if pages:
                drafter.join(prompts, list(pages), first, made)
        self._clock.lap("prefill")


def _score_prompt(target: TargetForward, chunk: PrefillChunk) -> None:
    """Log probabilities of the prompt's tokens after a chunk's rows, by a forward of their own.

    It writes the same KV as the chunk's. Pieces of rows keep the logits [n, V] of a large vocabulary small.
    """
    request = chunk.request
    for start in range(chunk.start, min(chunk.stop, len(request.prompt_ids) - 1), _SCORED_ROWS):
        stop = min(start + _SCORED_ROWS, chunk.stop)
        rows = chunk_rows([chunk._replace(start=start, stop=stop)], target.decoder.device)
        out = target.decoder.forward(
            rows._replace(logit_rows=torch.arange(stop - start, device=rows.positions.device)),
            target.kv,
            logits="logits",
            features=False,
        )
        if out.logits is None:
            raise EngineError("the decoder returned no logits; report this as a bug of its backend")
        following = request.prompt_ids[start + 1 : stop + 1]
        for offset, entry in enumerate(
            token_logprobs(out.logits, following, request.params.prompt_logprobs or 0)
        ):
            request.prompt_logprobs[start + 1 + offset] = entry


def following_tokens(chunks: Sequence[PrefillChunk], chosen: Tensor | None, device: torch.device) -> Tensor:
    """[R] int64, the token after each row; after a prompt's last row it is the one of `chosen` [F]."""
    tokens: list[int] = []
    last: list[int] = []  # the rows before the F first tokens
    for chunk in chunks:
        tokens += chunk.request.context(chunk.start + 1, chunk.stop + (not chunk.finishes))
        if chunk.finishes:
            last.append(len(tokens))
            tokens.append(0)
    following, rows = to_device(device, np.array(tokens), np.array(last, np.int64))
    if chosen is not None:
        following[rows] = chosen
    return following


def record_prompts(chunks: Sequence[PrefillChunk], features: Tensor) -> None:
    """Put each chunk's rows of the features [R, 3 * Ht] on its request's tape, if it has one."""
    parts = features.split([chunk.stop - chunk.start for chunk in chunks])
    for chunk, rows in zip(chunks, parts, strict=True):
        if chunk.request.tape is not None:
            chunk.request.tape.prefilled(chunk.start, rows)


def chunk_rows(chunks: Sequence[PrefillChunk], device: torch.device) -> ForwardBatch:
    """The rows of all chunks, end to end."""
    lengths = [chunk.stop - chunk.start for chunk in chunks]
    tokens = [token for chunk in chunks for token in chunk.request.context(chunk.start, chunk.stop)]
    pages = np.full((len(chunks), max(len(chunk.pages) for chunk in chunks)), PADDING_PAGE, np.int32)
    for number, chunk in enumerate(chunks):
        pages[number, : len(chunk.pages)] = chunk.pages
    places = np.concatenate([np.arange(chunk.start, chunk.stop, dtype=np.int32) for chunk in chunks])
    token_ids, positions, row_start, prefix_length, page_table = to_device(
        device,
        np.array(tokens, np.int32),
        places,
        np.cumsum([0, *lengths], dtype=np.int32),
        np.array([chunk.start for chunk in chunks], np.int32),
        pages,
    )
    return ForwardBatch(
        token_ids, positions, row_start, prefix_length, torch.zeros_like(prefix_length), page_table
    )
