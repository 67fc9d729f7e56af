"""Prompt lookup: drafts that cost nothing, copied from where the request's own tokens repeat themselves.

Answers quote their prompts, code its own names, and small models themselves. The longest run of tokens that ends the
context and occurred before is found (its latest occurrence), and what followed it there is proposed (prompt lookup
decoding, Saxena 2023; n-gram speculation in vLLM and SGLang).

    context    the cat sat on the mat and the cat sat | on the mat and ...
                   -----------        on ...  ----------- length n of the match: 3

Beside a head the proposal isn't used instead of its tree but within it (see `merge.py`). For that it needs a
probability: `rates[n]` is the share of tokens after matches of length n that were what the target chose. A match that
has come true is one token longer, so the d-th proposed token has the product of rates[n] .. rates[n + d - 1].

Where the head doesn't pay, as with many requests, proposals alone are verified: they need no draft step, and the head
needn't follow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.drafter import Candidates, Drafter
from fledge.engine.drafters.growth import TreeGrowth
from fledge.engine.drafters.guided import guided
from fledge.engine.drafters.proposal import LONGEST, Proposal, Source
from fledge.engine.drafters.proposer import Proposers
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.selection import SelectionRows


class Lookup(Drafter):
    """Prompt lookup alone: a chain of copied tokens for each request."""

    recordable = True

    def propose(self, batch: RunningBatch, plan: RoundPlan) -> Candidates:
        """As many tokens as the plan's trees are deep."""
        now = batch.view()
        copied = find(batch.history(), now.length, plan.bound.reach, plan.match_rates.log_rates(batch.device))
        return TreeGrowth(now.bonus[:, None], copied).candidates()


def proposal(
    batch: RunningBatch,
    selection: SelectionRows,
    plan: RoundPlan,
    tokens: int,
    proposers: Proposers | None = None,
) -> Proposal:
    """Prompt lookup's proposal or a proposer's and, for structured outputs, the tokens that the grammar forces."""
    now, guide = batch.view(), guided(selection.followers())
    found = find(batch.history(), now.length, tokens, plan.match_rates.log_rates(batch.device))
    found = found if proposers is None else proposers.compete(found, batch)
    return found if guide is None else guide.proposal(found)


def find(history: Tensor, length: Tensor, tokens: int, log_rates: Tensor) -> Proposal:
    """Look for repetitions in history [B, T] int32, of which entries 0 .. length [B] are known; propose `tokens` each.

    A repetition that runs into the end of the context goes on in circles.
    """
    known, last = history.shape[1], length.to(torch.int64)[:, None]  # [B, 1]
    place = torch.arange(known, device=history.device)
    back = torch.arange(LONGEST - 1, -1, -1, device=history.device)
    end = history.gather(1, (last - back).clamp(min=0)).masked_fill(last < back, -2)  # [B, N], newest last
    before = torch.nn.functional.pad(history, (LONGEST - 1, 0), value=-1).unfold(1, LONGEST, 1)  # [B, T, N]
    # As long as what ends at a place is what ends the context: up to the first difference, from the newest on.
    matched = torch.where(before == end[:, None], LONGEST, back.to(torch.int8)).amin(2).to(torch.int64)
    matched = matched.masked_fill(place >= last, 0)  # [B, T]
    best = (matched * known + place).argmax(1, keepdim=True)  # [B, 1], the latest of the longest
    found = matched.gather(1, best)  # [B, 1]
    steps = torch.arange(tokens, device=history.device)
    source = (best + 1 + steps % (last - best).clamp(min=1)).clamp(max=known - 1)
    token_ids = history.gather(1, source).to(torch.int64)
    reached = torch.where(found > 0, (found + steps).clamp(max=LONGEST), 0)  # [B, M]
    sources = torch.full_like(token_ids, Source.LOOKUP)
    return Proposal(token_ids.masked_fill(found == 0, -1), log_rates[reached], found[:, 0], sources)
