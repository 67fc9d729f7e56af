"""One decoding round for the running batch, and its definition. L is a request's committed length.

    propose -> a tree of N nodes per request; node 0, the root, is the token x[L], which is known already
    verify  -> one target forward over all nodes; at each node the target chooses the next token, greedily or by a draw
    accept  -> the path from the root along which every node is what its parent chose; the choice at the path's end
               is the bonus token, the next round's root
    commit  -> the accepted nodes' keys and values move to where they belong; the rest is overwritten
    follow  -> the drafter reads what was accepted, or rests

               verify window (target)          after the round
    index      L      L+1 ..                   L      L+1    L+2
               root   nodes, parents first     root   accepted path

The plan (`planner/plan.py`) says how large the tree is; a plain round's has no more than the root. Accept draws no
random numbers: what a node chooses follows from the request's seed and the position (`sampling.py`). The host reads no
value: a round is launched, and its result is fetched once. `NativeRound` is the same in one C++ call.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.batch import Carried, RunningBatch
from fledge.engine.drafters.drafter import Drafter
from fledge.engine.logprobs import PathLogprobs
from fledge.engine.phases import PhaseClock
from fledge.engine.planner.plan import Kind, RoundPlan
from fledge.engine.rounds.result import Drafted
from fledge.engine.rounds.rounds import Outcome
from fledge.engine.rounds.tree import Accepted, Verified, accept
from fledge.engine.shapes import PLAIN


class Verifying(Protocol):
    """Interface of the target that a round uses; implemented in `verifier.py`."""

    def verify(self, now: Carried, tree: DraftTree, *, chain: bool, features: bool) -> Verified:
        """One forward over the trees' B * N nodes, each of which chooses the next token."""

    def commit(self, now: Carried, path: Tensor) -> None:
        """Keys and values of the path's nodes [B, D + 1] go to L, L + 1, ..."""

    def emit(self, verified: Verified, rows: Tensor, accepted: Accepted) -> PathLogprobs | None:
        """Count what is emitted, from these rows [B, D + 1]; its log probabilities, where they are wanted."""


class TorchRound:
    """A round on any device, over any decoder and drafter."""

    def __init__(
        self, target: Verifying, batch: RunningBatch, drafter: Drafter | None, clock: PhaseClock
    ) -> None:
        self.target, self.batch, self.drafter, self.clock = target, batch, drafter, clock

    def run(self, plan: RoundPlan) -> Outcome:
        """See `Round`."""
        batch, drafter, clock, now = self.batch, self.drafter, self.clock, self.batch.view()
        drafted = self._propose(plan)
        tree, shape = drafted.tree, drafted.shape
        clock.lap("verify" if plan.kind is Kind.PLAIN else "draft")
        rests = not plan.drafts and batch.speculating().some
        features = drafter is not None and drafter.features and (plan.drafts or rests)
        verified = self.target.verify(now, tree, chain=shape.chain, features=features)
        clock.lap("verify")
        chosen = verified.chosen.view_as(tree.token_ids)
        accepted = accept(tree, chosen, shape.reach, batch.speculating().mask)
        rows = accepted.path + torch.arange(batch.size, device=batch.device)[:, None] * shape.nodes
        logprobs = self.target.emit(verified, rows, accepted)
        clock.lap("accept")
        if not shape.chain:  # a chain's nodes are where they belong already
            self.target.commit(now, accepted.path)
        along = None if verified.features is None else verified.features.index_select(0, rows.view(-1))
        if drafter is not None and plan.drafts:
            drafter.follow(batch, accepted, along)
        elif drafter is not None and rests:
            drafter.rest(batch, accepted.emitted[:, 0], along)
        batch.advance(accepted.emits, accepted.emitted)
        clock.lap("extend")
        emitted = torch.cat((accepted.emits[:, None], accepted.emitted), 1)
        hidden, states = verified.hidden, None
        if along is not None and hidden is not None:
            states = torch.cat((along, hidden.index_select(0, rows.view(-1))), 1).view(*rows.shape, -1)
        return Outcome(emitted, logprobs, drafted, accepted.path, states)

    def passed(self, done: Outcome) -> list[int]:
        """See `Round`: as many positions as the tree has levels."""
        return [done.path.shape[1]] * self.batch.size

    def _propose(self, plan: RoundPlan) -> Drafted:
        """Trees of the most probable candidates; a plan of one node wants the root alone."""
        root, bound = self.batch.view().bonus[:, None], plan.bound
        if self.drafter is None or bound == PLAIN:
            zeros = torch.zeros_like(root)
            tree = DraftTree(root.clone(), zeros - 1, zeros, zeros + 1, zeros.float(), zeros)
            return Drafted(tree, PLAIN, [], None)
        made = self.drafter.propose(self.batch, plan)
        shape = bound.cut(nodes=min(bound.nodes, made.token_ids.shape[1]))  # it may propose fewer
        return Drafted(made.select(shape.nodes, shape.reach), shape, made.levels, made.proposal)
