"""Prompt lookup: drafts that cost nothing, copied from where the request's own tokens repeat themselves.

Answers quote their prompts, code its own names, and small models themselves. The longest run of tokens that ends the
context and occurred before is found (its latest occurrence), and what followed it there is proposed (prompt lookup
decoding, Saxena 2023; n-gram speculation in vLLM and SGLang).

    context    the cat sat on the mat and the cat sat | on the mat and ...
                   -----------        on ...  ----------- length n of the match: 3

Here the proposal isn't used instead of the head's tree but within it (see `growth.py`). For that it needs a
probability: `rates[n]` is the share of tokens after matches of length n that were what the target chose. A match that
has come true is one token longer, so the d-th proposed token has the product of rates[n] .. rates[n + d - 1].

Where the head doesn't pay, as with many requests, proposals alone are verified: they need no draft step, and the head
needn't follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine import native_tree

LONGEST = 24  # matches are told apart up to this length; loops are longer
# By length: what 120 greedy answers of SmolLM2-135M to mt_bench, gsm8k and humaneval prompts showed, rounded.
_PRIOR = (0.25, 0.54, 0.63, 0.7, 0.75, 0.78, 0.81, 0.82, 0.84, 0.86, 0.87, *[0.9] * 4, *[0.92] * 8, 0.97)
_PRIOR_SEEN = 8.0  # observations a first guess is worth
_MOST_SEEN = 200.0  # and all there were: older ones fade


class Proposal(NamedTuple):
    """What prompt lookup proposes: M tokens for each of B requests."""

    token_ids: Tensor  # [B, M] int64; -1 throughout where nothing repeats
    log_probs: Tensor  # [B, M] float32, each token's given those before it; -inf where there is none
    matched: Tensor  # [B] int64, length of the match; 0: none


def chain(proposal: Proposal, root: Tensor, node_bit: Tensor, counts: Tensor) -> DraftTree:
    """The first `counts` [B] tokens of each proposal as a chain below `root` [B, 1], for rounds without the head."""
    size = int(counts.max()) + 1
    node = torch.arange(size, device=root.device)
    tokens = torch.cat((root, proposal.token_ids[:, : size - 1]), 1)
    log_probs = torch.nn.functional.pad(proposal.log_probs[:, : size - 1].cumsum(1), (1, 0))
    return DraftTree(
        token_ids=tokens.masked_fill(node > counts[:, None], -1),
        parents=(node - 1).expand_as(tokens),
        depths=node.expand_as(tokens),
        window_mask=node_bit[:size].cumsum(0).expand_as(tokens),
        log_probs=log_probs,
    )


class MatchRates:
    """How often a match of length 1 .. LONGEST goes on as before."""

    def __init__(self) -> None:
        self._seen = [_PRIOR_SEEN] * LONGEST
        self.rates = list(_PRIOR)
        self._log: Tensor | None = None
        self._changed = False

    def observe(self, proposal: Proposal, rows: Sequence[Sequence[int]]) -> None:
        """Compare a proposal with the round's result; each row holds how many tokens were emitted, then the tokens."""
        if not proposal.token_ids.shape[1]:
            return
        for matched, proposed, (count, *emitted) in zip(
            proposal.matched.tolist(), proposal.token_ids.tolist(), rows, strict=True
        ):
            if not matched:
                continue
            for step, (guess, token) in enumerate(zip(proposed, emitted[:count], strict=False)):
                self._count(min(matched + step, LONGEST) - 1, guess == token)
                if guess != token:
                    break

    def log_rates(self, device: torch.device) -> Tensor:
        """[LONGEST + 1] float32, natural logarithms by length; entry 0, no match, is -inf. Always the same tensor."""
        if self._log is None:
            self._log = torch.empty(LONGEST + 1, dtype=torch.float32, device=device)
            self._changed = True
        if self._changed:  # the host may be learning meanwhile
            self._changed = False
            self._log.copy_(torch.tensor([0.0, *self.rates], dtype=torch.float32).log_())
        return self._log

    def _count(self, index: int, hit: bool) -> None:
        self._seen[index] = min(self._seen[index] + 1, _MOST_SEEN)
        self.rates[index] += (hit - self.rates[index]) / self._seen[index]
        self.rates[index] = min(self.rates[index], 0.99)
        self._changed = True


def find(history: Tensor, length: Tensor, tokens: int, log_rates: Tensor) -> Proposal:
    """Look for repetitions in history [B, T] int32, of which entries 0 .. length [B] are known; propose `tokens` each.

    A repetition that runs into the end of the context goes on in circles.
    """
    if native_tree.runs_here(history):
        return Proposal(*native_tree.find_repeats(history, length, LONGEST, tokens, log_rates))
    free = native_tree.reads_are_free(history)
    if free:
        history = history[:, : int(length.max()) + 1]
    known, last = history.shape[1], length.to(torch.int64)[:, None]  # [B, 1]
    place = torch.arange(known, device=history.device)
    run = (history == history.gather(1, last)) & (place < last)  # [B, T], the match that ends here goes on
    matched = run.to(torch.int64)
    for back in range(1, min(LONGEST, known)):
        before = last - back
        same = history[:, :-back] == history.gather(1, before.clamp(min=0))
        run = torch.nn.functional.pad(run[:, back:] & same & (before >= 0), (back, 0))
        if free and not run.any():
            break
        matched += run
    best = (matched * known + place).argmax(1, keepdim=True)  # [B, 1], the latest of the longest
    found = matched.gather(1, best)  # [B, 1]
    steps = torch.arange(tokens, device=history.device)
    source = (best + 1 + steps % (last - best).clamp(min=1)).clamp(max=known - 1)
    token_ids = history.gather(1, source).to(torch.int64)
    reached = torch.where(found > 0, (found + steps).clamp(max=LONGEST), 0)  # [B, M]
    return Proposal(token_ids.masked_fill(found == 0, -1), log_rates[reached], found[:, 0])
