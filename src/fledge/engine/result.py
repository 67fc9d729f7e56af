"""A round as it runs on the lane, and the little of it that the host is told."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.carried import RunningBatch
from fledge.engine.forwards import Models
from fledge.engine.layout import TreeShape
from fledge.engine.logprobs import PathLogprobs
from fledge.engine.lookup import Proposal
from fledge.engine.outcome import Outcome, PlainOutcome
from fledge.engine.phases import PhaseClock
from fledge.engine.planner import RoundPlan
from fledge.engine.round import catch_up, lookup_round, plain_round, speculative_round


class Trees(NamedTuple):
    """What the planner learns of the draft trees of those S requests that speculated."""

    shape: TreeShape  # as verified
    depths: Tensor  # [S, N] int64, the nodes' depths
    log_probs: Tensor  # [S, N] float32, cumulative from the root
    levels: list[Tensor]  # per drafted level: [S, C] cumulative log probabilities
    rows: int  # of all B requests that were verified
    proposal: Proposal | None  # from prompt lookup, of all B requests


class RoundResult(NamedTuple):
    """What a round of B requests sends to the host."""

    emitted: Tensor  # [B, 1 + W] int64: how many tokens each request emits, then the tokens
    logprobs: PathLogprobs | None
    drafted: Trees | None  # None: a plain round
    tree: DraftTree | None  # and
    path: Tensor | None  # [B, D + 1] int64, the accepted nodes, if somebody traces
    pending: list[int]  # [B], positions each head is behind after the round
    restarted: list[bool]  # [B], heads whose KV has a gap
    catch_up: float  # seconds, of the time the round took
    draft: float  # steps alone
    verify: float


def run_round(
    models: Models, batch: RunningBatch, plan: RoundPlan | None, clock: PhaseClock, trace: bool
) -> RoundResult:
    """One round of the running requests; `plan` None: a plain one. `trace`: the trees are wanted."""
    clock.start()
    verify, extend = clock.of("verify"), clock.of("extend")
    done = None
    if plan is not None and plan.drafts:
        catch_up(models, batch)
        clock.lap("extend")
    late = clock.of("extend") - extend
    if plan is not None:
        done = (speculative_round if plan.drafts else lookup_round)(models, batch, plan, clock)
    made: Outcome | PlainOutcome = done or plain_round(models, batch, clock)
    drafted = None if done is None else _drafted(done, batch.speculating()[1])
    tree, path = (None, None) if done is None or not trace else (done.tree, done.path)
    steps, verify = 0.0 if done is None else done.draft_seconds, clock.of("verify") - verify
    return RoundResult(made.emitted, made.logprobs, drafted, tree, path, *_heads(batch), late, steps, verify)


def _drafted(done: Outcome, speculates: Tensor | None) -> Trees:
    depths, log_probs, levels = done.tree.depths, done.tree.log_probs, done.levels
    if speculates is not None:
        depths, log_probs = depths[speculates], log_probs[speculates]
        levels = [level[speculates] for level in levels]
    return Trees(done.shape, depths, log_probs, levels, done.rows, done.proposal)


def _heads(batch: RunningBatch) -> tuple[list[int], list[bool]]:
    return batch.pending[: batch.size], batch.restarted[: batch.size]
