"""A round as a task of the lane (`run_round`), and the part of its outcome that the host gets (`RoundResult`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.carried import RunningBatch
from fledge.engine.forwards import Models
from fledge.engine.graphs import RoundKey
from fledge.engine.logprobs import PathLogprobs
from fledge.engine.lookup import Proposal
from fledge.engine.native_round import NativeDraft
from fledge.engine.outcome import Outcome, PlainOutcome
from fledge.engine.phases import PhaseClock
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.request import Request, TreeTrace
from fledge.engine.round import catch_up, lookup_round, plain_round, speculative_round
from fledge.engine.shapes import TreeShape


class Trees(NamedTuple):
    """What the planner learns of the draft trees of those S requests that speculated."""

    shape: TreeShape  # as verified
    depths: Tensor  # [S, N] int64, the nodes' depths
    log_probs: Tensor  # [S, N] float32, cumulative from the root
    levels: list[Tensor]  # per drafted level: [S, C] cumulative log probabilities
    rows: int  # of all B requests that were verified
    proposal: Proposal | None  # from prompt lookup, of all B requests
    counts: Tensor | None  # [B] int64, nodes below the root, of all B requests; None: the shape's

    @property
    def masses(self) -> list[float]:
        """Summed probabilities of the nodes by depth, 1 first."""
        return _depth_masses(self.depths, self.log_probs, self.shape.reach)


class LateTrees:
    """`Trees` that are put together if the planner looks at them: it doesn't learn from every round."""

    def __init__(self, done: Outcome, speculating: Tensor | None) -> None:
        self.shape, self.rows = done.shape, done.rows
        self._drafted, self._speculating = done.drafted, speculating

    @property
    def depths(self) -> Tensor:
        """As in `Trees`."""
        return self._of(self._drafted.tree.depths)

    @property
    def log_probs(self) -> Tensor:
        """As in `Trees`."""
        return self._of(self._drafted.tree.log_probs)

    @property
    def masses(self) -> list[float]:
        """As in `Trees`."""
        return _depth_masses(self.depths, self.log_probs, self.shape.reach)

    @property
    def levels(self) -> list[Tensor]:
        """As in `Trees`."""
        return [self._of(level) for level in self._drafted.levels]

    @property
    def proposal(self) -> Proposal | None:
        """As in `Trees`."""
        return self._drafted.proposal

    @property
    def counts(self) -> Tensor | None:
        """As in `Trees`."""
        return self._drafted.counts

    def _of(self, column: Tensor) -> Tensor:
        return column if self._speculating is None else column.index_select(0, self._speculating)


class RoundResult(NamedTuple):
    """What the host gets of a round of B requests."""

    emitted: Tensor  # [B, 1 + W] int64: how many tokens each request emits, then the tokens
    logprobs: PathLogprobs | None
    drafted: Trees | LateTrees | None  # None: a plain round
    tree: DraftTree | None  # and
    path: Tensor | None  # [B, D + 1] int64, the accepted nodes, if somebody traces
    pending: list[int]  # [B], positions each head is behind after the round
    restarted: list[bool]  # [B], heads whose KV has a gap
    catch_up: float  # seconds, of the time the round took

    def tree_sizes(self, requests: int) -> list[int]:
        """Nodes below the root that were verified for each of the B `requests`."""
        if self.drafted is None:
            return [0] * requests
        if self.drafted.counts is None:
            return [self.drafted.shape.nodes - 1] * requests
        sizes: list[int] = self.drafted.counts.tolist()
        return sizes

    def traces(self, running: Sequence[Request]) -> dict[int, TreeTrace]:
        """By request id, the draft trees of those B requests that were submitted with `trace`."""
        tree, path, found = self.tree, self.path, {}
        if tree is None or path is None:
            return {}
        for row, request in enumerate(running):
            if request.trace and request.speculate:
                # Its neighbours may have more nodes: the last ones are empty then.
                nodes = int((tree.token_ids[row] >= 0).sum())
                found[request.id] = TreeTrace(
                    token_ids=tree.token_ids[row, :nodes].tolist(),
                    parents=tree.parents.expand_as(tree.token_ids)[row, :nodes].tolist(),
                    log_probs=tree.log_probs[row, :nodes].tolist(),
                    path=path[row, : int(self.emitted[row, 0])].tolist(),
                )
        return found


def run_round(
    models: Models, batch: RunningBatch, plan: RoundPlan | None, clock: PhaseClock, trace: bool
) -> RoundResult:
    """One round of the running requests; `plan` None: a plain one. `trace`: somebody wants the trees themselves."""
    clock.start()
    extend = clock.of("extend")
    if plan is not None and plan.drafts:
        catch_up(models, batch)
        clock.lap("extend")
    late = clock.of("extend") - extend
    made = _launched(models, batch, plan, clock)
    done = made if isinstance(made, Outcome) else None
    drafted = None if done is None else _drafted(done, batch.speculating().rows)
    tree, path = (None, None) if done is None or not trace else (done.drafted.tree, done.path)
    pending, restarted = batch.pending[: batch.size], batch.restarted[: batch.size]
    return RoundResult(made.emitted, made.logprobs, drafted, tree, path, pending, restarted, late)


def _launched(
    models: Models, batch: RunningBatch, plan: RoundPlan | None, clock: PhaseClock
) -> Outcome | PlainOutcome:
    """The round itself; as a CUDA graph, where these are on and the round can be recorded."""
    if models.rounds is None or (key := _round_key(batch, plan)) is None:
        return _round(models, batch, plan, clock)
    batch.selection.settle()
    if plan is not None:
        plan.match_rates.log_rates(batch.device)
    made = models.rounds.run(
        key, partial(_round, models, batch, plan, clock), partial(_again, models, batch, plan)
    )
    clock.lap("verify")
    return made


def _again(models: Models, batch: RunningBatch, plan: RoundPlan | None) -> None:
    """What a replayed round leaves out: what it does on the host. With drafts there is nothing."""
    if plan is None and models.head is not None and batch.speculating().some:
        batch.one_behind()


def _round(
    models: Models, batch: RunningBatch, plan: RoundPlan | None, clock: PhaseClock
) -> Outcome | PlainOutcome:
    done = None
    if plan is not None:
        done = (speculative_round if plan.drafts else lookup_round)(models, batch, plan, clock)
    return done or plain_round(models, batch, clock)


def _round_key(batch: RunningBatch, plan: RoundPlan | None) -> RoundKey | None:
    """What the round's kernels depend on; None: the round can't be recorded."""
    choice, speculating = batch.selection.choice, batch.speculating()
    if choice is None or (plan is not None and not plan.drafts):
        return None
    shape = None if plan is None else plan.bound
    return RoundKey(batch.size, shape, speculating.some, speculating.mask is None, choice)


def _drafted(done: Outcome, rows: Tensor | None) -> Trees | LateTrees:
    """The trees of those requests that speculate; `rows` are their numbers, None: all."""
    late = LateTrees(done, rows)
    if isinstance(done.drafted, NativeDraft):  # in the host's own memory, where it stays
        return late
    return Trees(late.shape, late.depths, late.log_probs, late.levels, late.rows, late.proposal, late.counts)


def _depth_masses(depths: Tensor, log_probs: Tensor, deepest: int) -> list[float]:
    """Summed probabilities [deepest] of the nodes [B, N] by depth, depth 1 first."""
    sums = torch.bincount(depths.flatten(), log_probs.exp().flatten().double(), deepest + 1)
    masses: list[float] = sums[1:].tolist()
    return masses
