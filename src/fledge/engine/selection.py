"""Token selection for each row of logits: the running requests' sampling parameters, one row per request.

`SelectionRows` keeps the requests' parameters on the host. `SelectionRows.selection` turns them into tensors, a
`Selection`, which is kept until the batch changes. Penalties count the tokens a request has seen in tables as wide as
the vocabulary, so these are only made when the first request with a penalty comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.base.device import to_device, write
from fledge.engine.logprobs import LogprobRows
from fledge.engine.penalties import LogitEdits, TokenCounts
from fledge.engine.request import Request
from fledge.engine.sampling import RowSampling
from fledge.engine.structured import Follower


class Selection(NamedTuple):
    """Selection parameters of a forward's rows, N rows to each of B requests."""

    sampling: RowSampling | None  # of all B * N rows; None: all are greedy
    edits: LogitEdits | None
    logprobs: LogprobRows | None
    only_drawn: bool  # logits are only sampled from: no logprobs, no penalties (grammar masks are fine)


class Drawing(NamedTuple):
    """Draw parameters of B requests, in the form that the CPU kernels read."""

    filters: Tensor  # [B, 4] float32: temperature (0: greedy), top-k, top-p, min-p
    keys: Tensor  # [B] int64, `seed_key(seed)`


class SelectionRows:
    """The running requests' parameters; rows move together with those of `RunningBatch`."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._capacity, self._vocabulary, self._device = rows, vocabulary, device
        self._requests: list[Request] = []
        self._counts: TokenCounts | None = None
        self._penalized: Tensor | None = None  # [m] int64, requests with penalties, until the batch changes
        self._selections: dict[int, Selection | None] = {}  # by rows per request, until the batch changes
        self._drawing: Drawing | None = None  # likewise
        self._followers: dict[int, Follower] = {}  # by request id, for structured outputs
        self._recorded: tuple[int, str] | None = (
            None  # requests and choice of the round that is being recorded
        )
        self._fixed: RowSampling | None = (
            None  # [rows], where recorded rounds find the running requests' parameters
        )
        self._settled: Selection | None = None  # what was written there

    def append(self, row: int, request: Request, pages: Sequence[int], bonus: Tensor) -> None:
        """A row for a request; its answer up to and with `bonus` [] int64 is counted."""
        self._requests.append(request)
        if request.grammar is not None:
            self._followers[request.id] = request.grammar.after([*_prefilled(request), int(bonus)])
        if request.params.penalizes:
            if self._counts is None:
                self._counts = _no_counts(self._capacity, self._vocabulary, self._device)
            _count(self._counts, row, request, _prefilled(request))
            self._counts.generated[row].scatter_add_(0, bonus.view(1), bonus.new_ones(1, dtype=torch.int32))
        self._changed()

    def enter_pages(self, row: int, start: int, pages: Sequence[int]) -> None:
        """Do nothing: pages don't matter here."""

    def remove(self, row: int, last: int) -> None:
        """Take a row out; the last row moves into its place."""
        if self._followers:
            self._followers.pop(self._requests[row].id, None)
        moved = self._requests.pop()
        if row != last:
            self._requests[row] = moved
            if self._counts is not None and moved.params.penalizes:
                for table in self._counts:
                    table[row] = table[last]
        self._changed()

    def clear(self) -> None:
        """Take all rows out."""
        self._requests.clear()
        self._followers.clear()
        self._changed()

    def selection(self, nodes: int) -> Selection | None:
        """Selection for B * nodes rows of logits; None if all of them take the most likely token."""
        if nodes not in self._selections:
            if self._recorded is not None:
                self._selections[nodes] = self._recorded_selection(nodes, *self._recorded)
            else:
                self._selections[nodes] = _selection(
                    self._requests, nodes, self._counts, self._followers, self._device
                )
        return self._selections[nodes]

    @property
    def choice(self) -> str | None:
        """Kind of token choice, as far as a CUDA graph depends on it; None: it can't be recorded."""
        selection = self.selection(1)
        if selection is None:
            return "greedy"
        if selection.sampling is None or selection.edits is not None or selection.logprobs is not None:
            return None
        return "filtered" if selection.sampling.truncates else "drawn"

    @contextmanager
    def recording(self, requests: int, choice: str) -> Iterator[None]:
        """Context in which `requests` requests choose tokens by `choice`, with parameters written later."""
        if self._fixed is None:
            self._fixed = _no_sampling(self._capacity, self._device)
        self._selections, self._recorded = {}, (requests, choice)
        try:
            yield
        finally:
            self._recorded = None
            self._changed()

    def settle(self, requests: int, rows: int) -> None:
        """Write the running requests' parameters to where recorded rounds read them."""
        made = self.selection(1)
        if made is None or made.sampling is None or self._fixed is None or made is self._settled:
            return
        self._settled = made
        for fixed, now in zip(self._fixed[:5], made.sampling[:5], strict=True):
            fixed[:requests].copy_(now)

    @property
    def wants_logits(self) -> bool:
        """True if logits need processing that single-call rounds don't do."""
        selection = self.selection(1)
        return selection is not None and (selection.edits is not None or not selection.only_drawn)

    def drawing(self) -> Drawing | None:
        """Draw parameters of the running requests; None if all are greedy."""
        selection = self.selection(1)
        if selection is None or selection.sampling is None:
            return None
        if self._drawing is None:
            rows = selection.sampling
            self._drawing = Drawing(rows.filters, rows.seed_key)
        return self._drawing

    def followers(self) -> dict[int, Follower]:
        """By row, what follows answers with structured outputs."""
        rows = enumerate(self._requests if self._followers else ())
        return {row: self._followers[one.id] for row, one in rows if one.id in self._followers}

    def count(self, tokens: Tensor, emits: Tensor | None) -> None:
        """Count what a round emitted: the first `emits` [B] (None: all) of `tokens` [B, W]."""
        for row, request in enumerate(self._requests if self._followers else ()):
            if request.id in self._followers:
                count = tokens.shape[1] if emits is None else int(emits[row])
                self._followers[request.id].take(tokens[row, :count].tolist())
        if self._counts is None or not any(request.params.penalizes for request in self._requests):
            return
        if self._penalized is None:
            found = [row for row, request in enumerate(self._requests) if request.params.penalizes]
            (self._penalized,) = to_device(self._device, np.array(found))
        rows = self._penalized
        tokens = tokens.index_select(0, rows)
        step = torch.arange(tokens.shape[1], device=tokens.device)
        if emits is None:
            times = torch.ones_like(tokens, dtype=torch.int32)
        else:
            times = (step < emits.index_select(0, rows)[:, None]).to(torch.int32)
        self._counts.generated.index_put_((rows[:, None].expand_as(tokens), tokens), times, accumulate=True)

    def _recorded_selection(self, nodes: int, requests: int, choice: str) -> Selection | None:
        if choice == "greedy" or self._fixed is None:
            return None
        temperature, top_k, top_p, min_p, key = (
            column[:requests].repeat_interleave(nodes) for column in self._fixed[:5]
        )
        rows = RowSampling(temperature, top_k, top_p, min_p, key, None, choice == "filtered", greedy_too=True)
        return Selection(rows, None, None, only_drawn=True)

    def _changed(self) -> None:
        self._selections.clear()
        self._penalized = self._drawing = None


def _prefilled(request: Request) -> list[int]:
    """A request's answer as it was when prefill began. Whether the host has later tokens depends on timing."""
    return request.context(len(request.prompt_ids), request.prefill_length)


def request_selection(requests: Sequence[Request], vocabulary: int, device: torch.device) -> Selection | None:
    """Selection for one row of logits per request, outside the running batch; None if all are plainly greedy."""
    counts = None
    if any(request.params.penalizes for request in requests):
        counts = _no_counts(len(requests), vocabulary, device)
        for row, request in enumerate(requests):
            if request.params.penalizes:
                _count(counts, row, request, request.output_ids)
    at = {request.id: request.grammar.after(request.output_ids) for request in requests if request.grammar}
    return _selection(requests, 1, counts, at, device)


def _no_sampling(rows: int, device: torch.device) -> RowSampling:
    """Greedy rows, in memory that is written to."""
    zeros, ones = (make(rows, dtype=torch.float32, device=device) for make in (torch.zeros, torch.ones))
    none = torch.zeros(rows, dtype=torch.int64, device=device)
    return RowSampling(zeros, none, ones, zeros.clone(), none.clone(), None, truncates=False)


def _no_counts(rows: int, vocabulary: int, device: torch.device) -> TokenCounts:
    return TokenCounts(
        generated=torch.zeros(rows, vocabulary, dtype=torch.int32, device=device),
        in_prompt=torch.zeros(rows, vocabulary, dtype=torch.bool, device=device),
    )


def _count(counts: TokenCounts, row: int, request: Request, answered: Sequence[int]) -> None:
    vocabulary = counts.generated.shape[1]
    generated = np.bincount(np.array(answered, dtype=np.int64), minlength=vocabulary)
    in_prompt = np.zeros(vocabulary, bool)
    in_prompt[request.prompt_ids] = True
    write(counts.generated[row], generated.astype(np.int32))
    write(counts.in_prompt[row], in_prompt)


def _selection(
    requests: Sequence[Request],
    nodes: int,
    counts: TokenCounts | None,
    followers: Mapping[int, Follower],
    device: torch.device,
) -> Selection | None:
    sampling = _row_sampling(requests, nodes, device)
    edits, logprobs = _edits(requests, counts, followers, device), _logprobs(requests, device)
    if sampling is None and edits is None and logprobs is None:
        return None
    masked = edits is None or edits.only_forms
    return Selection(sampling, edits, logprobs, only_drawn=masked and logprobs is None)


def _row_sampling(requests: Sequence[Request], nodes: int, device: torch.device) -> RowSampling | None:
    params = [request.params for request in requests]
    if not any(p.temperature for p in params):
        return None
    numbers = np.array([(p.temperature, p.top_k, p.top_p, p.min_p) for p in params], np.float32)
    numbers = numbers.repeat(nodes, axis=0)  # [B * N, 4]
    keys = np.array([request.key for request in requests], np.int64).repeat(nodes)
    sampled = np.flatnonzero(numbers[:, 0])
    temperature, top_k, top_p, min_p, seed_key, warm = to_device(
        device, *(column.copy() for column in numbers.T), keys, sampled
    )
    return RowSampling(
        temperature=temperature,
        top_k=top_k.to(torch.int64),
        top_p=top_p,
        min_p=min_p,
        seed_key=seed_key,
        sampled=None if len(sampled) == len(numbers) else warm,
        truncates=bool(((numbers[:, 1] > 0) | (numbers[:, 2] < 1)).any()),
    )


def _edits(
    requests: Sequence[Request],
    counts: TokenCounts | None,
    followers: Mapping[int, Follower],
    device: torch.device,
) -> LogitEdits | None:
    chosen = [
        (row, r)
        for row, r in enumerate(requests)
        if r.params.penalizes or r.params.logit_bias or r.ends_late or r.grammar
    ]
    if not chosen:
        return None
    params = [r.params for _, r in chosen]
    longest = max(len(p.logit_bias) for p in params)
    bias_ids, bias = np.zeros((len(params), longest), np.int64), np.zeros((len(params), longest), np.float32)
    for row, p in enumerate(params):
        bias_ids[row, : len(p.logit_bias)] = list(p.logit_bias)
        bias[row, : len(p.logit_bias)] = list(p.logit_bias.values())
    most = max(len(r.stop_ids) if r.ends_late else 0 for _, r in chosen)
    ends, ends_from = np.zeros((len(params), most), np.int64), np.zeros((len(params), 1), np.int64)
    for row, (_, request) in enumerate(chosen):
        if request.ends_late:
            ends[row] = np.resize(sorted(request.stop_ids), most)  # fewer are repeated
            ends_from[row] = len(request.prompt_ids) + request.params.min_tokens
    penalties = [[p.repetition_penalty, p.presence_penalty, p.frequency_penalty] for p in params]
    rows, columns, *others = to_device(
        device,
        np.array([row for row, _ in chosen]),
        np.array(penalties, np.float32),  # [n, 3]
        bias_ids,
        bias,
        ends,
        ends_from,
    )
    repetition, presence, frequency = columns.split(1, 1)
    return LogitEdits(
        requests=rows,
        counts=counts if any(p.penalizes for p in params) else None,
        repetition=repetition,
        presence=presence,
        frequency=frequency,
        bias_ids=others[0],
        bias=others[1],
        ends=others[2],
        ends_from=others[3],
        followers=[followers.get(r.id) for _, r in chosen],
    )


def _logprobs(requests: Sequence[Request], device: torch.device) -> LogprobRows | None:
    wanted = [(row, request.params.logprobs) for row, request in enumerate(requests)]
    numbers = [row for row, count in wanted if count is not None]
    if not numbers:
        return None
    return LogprobRows(
        requests=to_device(device, np.array(numbers))[0],
        numbers=numbers,
        top=max(count for _, count in wanted if count is not None),
    )
