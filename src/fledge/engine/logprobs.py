"""Log probabilities of what was emitted: the target's own, before bias, penalties, temperature and filters.

That is vLLM's default, too. They are computed for the accepted path only, from the rows of the verify forward, whose
logits are those of plain decode.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TokenLogprob(NamedTuple):
    """A token of an answer and what the target thought of it."""

    token_id: int
    logprob: float  # natural logarithm of its probability
    top: list[tuple[int, float]]  # the most likely in its place, best first, whether or not it's among them


class LogprobRows(NamedTuple):
    """Requests of a batch that want log probabilities."""

    requests: Tensor  # [n] int64
    numbers: list[int]  # the same, on the host
    top: int  # K, the most any of them wants


class PathLogprobs(NamedTuple):
    """Log probabilities of n requests, at W places each; places beyond the accepted path mean nothing."""

    numbers: list[int]  # which of the batch's requests
    chosen: Tensor  # [n, W] float32
    top_ids: Tensor  # [n, W, K] int64
    top: Tensor  # [n, W, K] float32

    def read(self, token_ids: list[list[int]]) -> dict[int, list[TokenLogprob]]:
        """By the request's number in the batch; `token_ids` are the places' tokens of all its requests."""
        chosen, top_ids, top = self.chosen.tolist(), self.top_ids.tolist(), self.top.tolist()
        return {
            number: [
                TokenLogprob(token, logprob, list(zip(ids, values, strict=True)))
                for token, logprob, ids, values in zip(
                    token_ids[number], chosen[n], top_ids[n], top[n], strict=False
                )
            ]
            for n, number in enumerate(self.numbers)
        }


def path_logprobs(logits: Tensor, wanted: LogprobRows, rows: Tensor | None, chosen: Tensor) -> PathLogprobs:
    """Log probabilities from raw `logits` [R, V]; `rows` [B, W] of each request, None: one each; `chosen` [B, W]."""
    chosen = chosen.index_select(0, wanted.requests)  # [n, W]
    places = wanted.requests[:, None] if rows is None else rows.index_select(0, wanted.requests)
    values = logits.index_select(0, places.reshape(-1)).float()
    log_probs = torch.log_softmax(values, -1).view(*chosen.shape, -1)  # [n, W, V]
    best = log_probs.topk(min(wanted.top, log_probs.shape[-1]), -1)
    return PathLogprobs(
        numbers=wanted.numbers,
        chosen=log_probs.gather(2, chosen[:, :, None]).squeeze(2),
        top_ids=best.indices,
        top=best.values,
    )


def token_logprobs(logits: Tensor, token_ids: list[int], top: int) -> list[TokenLogprob]:
    """Log probabilities of tokens from raw `logits` [R, V]: token r was chosen from row r; further rows are ignored."""
    path = torch.tensor([token_ids], device=logits.device)
    rows = torch.arange(len(token_ids), device=logits.device)[None]
    wanted = LogprobRows(requests=torch.zeros_like(rows[:, 0]), numbers=[0], top=top)
    return path_logprobs(logits, wanted, rows, path).read([token_ids])[0]
