"""Proposals that join a head's trees, whose tokens they are, and the observed accuracy of prompt lookup's."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.base.device import write
from fledge.native.abi import LOOKUP_SOURCE

LONGEST = 24  # tokens: longer matches (loops) count as this long
# By length: what 120 greedy answers of SmolLM2-135M to mt_bench, gsm8k and humaneval prompts showed, rounded.
_PRIOR = (0.25, 0.54, 0.63, 0.7, 0.75, 0.78, 0.81, 0.82, 0.84, 0.86, 0.87, *[0.9] * 4, *[0.92] * 8, 0.97)
_PRIOR_SEEN = 8.0  # observations a first guess is worth
_MOST_SEEN = 200.0  # cap on the effective sample size, so old observations decay


class Source(IntEnum):
    """The proposer of a token, as a number.

    A token that the head proposes is the head's, whoever else does. Otherwise it is that of the one proposal that joins
    the request's tree: the surest of prompt lookup's and the proposers', the first of equals.
    """

    HEAD = 0  # or a drafter in its place
    LOOKUP = LOOKUP_SOURCE
    GRAMMAR = 2  # forced by a structured output's grammar
    PROPOSER = 3  # the first of the engine's proposers; the others follow


class Proposal(NamedTuple):
    """One proposal for each of B requests, of M tokens."""

    token_ids: Tensor  # [B, M] int64; -1 throughout where nothing repeats
    log_probs: Tensor  # [B, M] float32, each token's given those before it; -inf where there is none
    matched: Tensor  # [B] int64, length of prompt lookup's match; 0: it has no tokens here
    sources: Tensor  # [B, M] int64, whose each token is: a `Source`, for proposer n PROPOSER + n


class MatchRates:
    """Rates at which a match of length 1 .. LONGEST continues as before."""

    def __init__(self) -> None:
        self._seen = [_PRIOR_SEEN] * LONGEST
        self.rates = list(_PRIOR)
        self._log: Tensor | None = None
        self._changed = False

    def observe(self, proposal: Proposal, rows: Sequence[Sequence[int]]) -> None:
        """Compare a proposal with the round's result; each row holds how many tokens were emitted, then the tokens."""
        if not proposal.token_ids.shape[1]:
            return
        for matched, proposed, sources, (count, *emitted) in zip(
            proposal.matched.tolist(),
            proposal.token_ids.tolist(),
            proposal.sources.tolist(),
            rows,
            strict=True,
        ):
            if not matched:
                continue
            copied = [
                token for token, source in zip(proposed, sources, strict=True) if source == Source.LOOKUP
            ]
            for step, (guess, token) in enumerate(zip(copied, emitted[:count], strict=False)):
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
            write(self._log, torch.tensor([0.0, *self.rates], dtype=torch.float32).log_().numpy())
        return self._log

    def _count(self, index: int, hit: bool) -> None:
        self._seen[index] = min(self._seen[index] + 1, _MOST_SEEN)
        rate = self.rates[index]
        self.rates[index] = min(rate + (hit - rate) / self._seen[index], 0.99)
        self._changed = True
