"""Running prompts: chunks of several requests laid end to end in one forward of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.base.device import to_device
from fledge.base.errors import EngineError
from fledge.engine.forwards import TargetForward
from fledge.engine.logprobs import PathLogprobs, path_logprobs, token_logprobs
from fledge.engine.request import Request
from fledge.engine.selection import request_selection
from fledge.target.batch import PADDING_PAGE, ForwardBatch

_SCORED_ROWS = 128


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
    features: Tensor | None = None  # [R, 3 * Ht] of all chunks, if the engine has a recorder


class Prefilled(NamedTuple):
    """A target forward over chunks. F chunks finish."""

    rows: ForwardBatch
    features: Tensor | None  # [R, 3 * Ht]
    chosen: Tensor | None  # [F] int64, first tokens; None if no chunk finishes
    logprobs: PathLogprobs | None = None  # of the F first tokens


def prefill_target(target: TargetForward, chunks: Sequence[PrefillChunk], *, features: bool) -> Prefilled:
    """The target over all chunks; those that finish yield a token each."""
    for chunk in chunks:
        if chunk.request.params.prompt_logprobs is not None:
            _score_prompt(target, chunk)
    rows = chunk_rows(chunks, target.decoder.device)
    last = [number for number, chunk in enumerate(chunks) if chunk.finishes]
    if not last:
        out = target.decoder.forward(rows, target.kv, logits="none", features=features)
        return Prefilled(rows, out.features, None)
    finishing = [chunks[number] for number in last]
    device = target.decoder.device
    requests = [chunk.request for chunk in finishing]
    selection = request_selection(requests, target.decoder.config.vocab_size, device)
    ends = np.cumsum([chunk.stop - chunk.start for chunk in chunks], dtype=np.int32)
    logit_rows, position = to_device(device, ends[last] - 1, np.array([chunk.stop for chunk in finishing]))
    wanted = rows._replace(logit_rows=logit_rows)
    done = target.choose_tokens(wanted, position, selection=selection, features=features)
    logprobs = None
    if selection is not None and selection.logprobs is not None and done.logits is not None:
        logprobs = path_logprobs(done.logits, selection.logprobs, None, done.chosen[:, None])
    return Prefilled(rows, done.features, done.chosen, logprobs)


def _score_prompt(target: TargetForward, chunk: PrefillChunk) -> None:
    """Log probabilities of the prompt's tokens behind a chunk's rows, by a forward of their own.

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


def following_tokens(chunks: Sequence[PrefillChunk], done: Prefilled) -> Tensor:
    """[R] int64, the token behind each row; behind a prompt's last row it is the one just chosen."""
    tokens: list[int] = []
    chosen: list[int] = []  # the rows behind which the F first tokens stand
    for chunk in chunks:
        tokens += chunk.request.context(chunk.start + 1, chunk.stop + (not chunk.finishes))
        if chunk.finishes:
            chosen.append(len(tokens))
            tokens.append(0)
    device = done.rows.token_ids.device
    following, rows = to_device(device, np.array(tokens), np.array(chosen, np.int64))
    if done.chosen is not None:
        following[rows] = done.chosen
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


class Joining(NamedTuple):
    """A request whose prompt is done and that takes part in the next round."""

    chunk: int  # its number among the prefill's chunks
    place: int  # and among those that finish
    request: Request
    pages: tuple[int, ...]  # the request's now
