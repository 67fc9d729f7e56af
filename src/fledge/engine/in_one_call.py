"""Rounds that are one C++ call, where no request wants logits: what it needs of batch and plan, and what it took."""

from __future__ import annotations

from fledge.engine.carried import RunningBatch
from fledge.engine.native_round import DraftInputs, NativeOutcome, NativeRound
from fledge.engine.outcome import Outcome
from fledge.engine.phases import PhaseClock
from fledge.engine.plans import RoundPlan


def speculate(native: NativeRound, batch: RunningBatch, plan: RoundPlan, clock: PhaseClock) -> Outcome:
    """See `round.speculative_round`."""
    return _outcome(native.round(DraftInputs.of(batch, plan)), clock)


def look_up(native: NativeRound, batch: RunningBatch, plan: RoundPlan, clock: PhaseClock) -> Outcome | None:
    """See `round.lookup_round`."""
    keep = bool(batch.sizes.pending)  # without room to remember, the head is never run
    done = native.lookup(DraftInputs.of(batch, plan), keep=keep)
    if done is None:
        clock.lap("draft")
        return None
    if keep:
        batch.some_behind(done.emitted[:, 0].tolist())
    return _outcome(done, clock)


def _outcome(done: NativeOutcome, clock: PhaseClock) -> Outcome:
    clock.add("draft", done.draft)
    clock.add("verify", done.verify)
    clock.add("accept", done.accept)
    clock.lap("extend")
    drafted = done.drafted
    return Outcome(done.emitted, None, drafted, drafted.shape, done.path, drafted.rows, drafted.seconds)
