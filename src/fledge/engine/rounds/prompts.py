"""A prefill: the target over chunks of prompts, then the drafter, then rows in the batch for those that are done.

These are two launches, so that the host has the first tokens before the drafter has run.
"""

from __future__ import annotations

from collections.abc import Sequence

from fledge.base.errors import EngineError
from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.drafter import Drafter, Prompts
from fledge.engine.forwards import TargetForward
from fledge.engine.phases import PhaseClock
from fledge.engine.prefill import (
    FirstTokens,
    Joining,
    PrefillChunk,
    Prefilled,
    following_tokens,
    prefill_target,
)


class PrefillRun:
    """One prefill. B requests, R rows in all chunks."""

    def __init__(
        self,
        target: TargetForward,
        batch: RunningBatch,
        drafter: Drafter | None,
        chunks: Sequence[PrefillChunk],
        clock: PhaseClock,
        *,
        records: bool = False,
    ) -> None:
        """`drafter`: None if no request speculates. `records`: the first tokens come with the prompts' features."""
        self._target, self._batch, self._drafter, self._records = target, batch, drafter, records
        self._chunks, self._clock = chunks, clock
        self._done: Prefilled | None = None

    def target(self) -> FirstTokens:
        """The target over all chunks."""
        self._clock.start()
        features = self._records or (self._drafter is not None and self._drafter.features)
        self._done = done = prefill_target(self._target, self._chunks, features=features)
        self._clock.lap("prefill")
        # A copy for the host: `join` still reads the original.
        chosen = None if done.chosen is None else done.chosen.clone()
        return FirstTokens(chosen, done.logprobs, done.features if self._records else None)

    def join(self, joining: Sequence[Joining], *, read: bool) -> None:
        """The drafter over all chunks (without `read` it catches up later), and rows in the batch for the `joining`."""
        self._clock.start()
        done, batch, drafter = self._done, self._batch, self._drafter
        if done is None:
            raise EngineError(
                "a prompt's end was prefilled before its beginning; report this as a bug of the engine"
            )
        self._done = None
        first = batch.size
        for one in joining:
            if done.chosen is not None:
                batch.append(one.request, one.pages, done.chosen[one.place])
        if drafter is not None:
            prompts = Prompts(
                done.rows,
                following_tokens(self._chunks, done),
                done.features,
                starts=[chunk.request.draft_start for chunk in self._chunks],
                stops=[chunk.stop for chunk in self._chunks],
                sizes=[chunk.stop - chunk.start for chunk in self._chunks],
            )
            made = drafter.prefill(prompts) if read else None
            if joining:
                drafter.join(prompts, [one.chunk for one in joining], first, made)
        self._clock.lap("prefill")
