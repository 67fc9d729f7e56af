"""Callbacks from a native round into Python: calls that C++ makes between its own steps (`Hooks` in round.h).

    draft   -> allow     before and between levels: proposals of one's own; what a grammar forbids isn't drafted
    verify  -> verify    the target's forward with what is done with logits: penalties, bias, log probabilities, masks

Most rounds have none. An exception in a hook ends the round, and is raised behind it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_int64, c_void_p, cast
from typing import Any

import torch
from torch import Tensor

from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.guided import guided
from fledge.engine.drafters.proposer import Proposers
from fledge.engine.rounds.native_draft import NativeDraft
from fledge.engine.rounds.tree import Verified
from fledge.engine.rounds.verifier import Verifier
from fledge.native import abi

_ALLOW = CFUNCTYPE(c_int, c_int64, *[c_void_p] * 4)
_VERIFY = CFUNCTYPE(c_int, *[c_void_p] * 3)


class RoundHooks:
    """The hooks of one round. `raw` is what the call takes."""

    def __init__(
        self,
        target: Verifier,
        batch: RunningBatch,
        draft: NativeDraft,
        *,
        first_level: int,
        topk: int,
        features: bool,
        proposers: Proposers | None = None,
    ) -> None:
        """`first_level`: candidates that are carried for each request; `topk` nodes of each level are expanded."""
        self._target, self._batch, self._draft, self._features = target, batch, draft, features
        self._first_level, self._topk = first_level, topk
        self._guide = guided(target.selection.followers())
        self._failure: BaseException | None = None
        self.verified: Verified | None = None
        wanted: list[Any] = [None, None]
        self._proposers = proposers
        if self._guide is not None or proposers is not None:
            wanted[0] = _ALLOW(self._guarded(self._allow))
        if target.selection.wants_logits:
            wanted[1] = _VERIFY(self._guarded(self._verify))
        self._held = wanted
        self.raw = abi.Hooks(*(None if hook is None else cast(hook, c_void_p) for hook in wanted))

    def check(self) -> None:
        """Raise what a hook raised."""
        if self._failure is not None:
            raise self._failure

    def _guarded(self, work: Callable[..., None]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                work(*arguments)
            except BaseException as failure:  # C++ can't pass it on
                self._failure = failure
                return 1
            return 0

        return call

    def _allow(self, level: int, frontier: int, parents: int, children: int, log_probs: int) -> None:
        guide, size, topk = self._guide, self._batch.size, self._topk
        if level == 0:
            self._change_proposal()
        if guide is None:
            return
        if level == 0:
            width = self._first_level
            if topk:
                tokens, scores = _ids(children, size, width), _floats(log_probs, size, width)
                first = guide.first(tokens, scores, topk)
                tokens[:, :topk], scores[:, :topk] = first
            return
        if level > 1:
            guide.descend(_ids(parents, size * topk), _ids(frontier, size, topk))
        scores = _floats(log_probs, size * topk, topk)
        scores.copy_(guide.kept(_ids(children, size * topk, topk), scores))

    def _change_proposal(self) -> None:
        """Let proposers compete with prompt lookup, then the grammar allow and force tokens."""
        found = changed = self._draft.proposal
        if found is None or changed is None:
            return
        if self._proposers is not None:
            changed = self._proposers.compete(changed, self._batch)
        if self._guide is not None:
            changed = self._guide.proposal(changed)
        for old, new in zip(found, changed, strict=True):
            old.copy_(new)

    def _verify(self, chosen: int, features: int, hidden: int) -> None:
        draft, ready = self._draft, self._draft.ready
        self.verified = done = self._target.choose(
            self._batch.view(),
            draft.tree,
            tokens=ready.tokens,
            positions=ready.positions,
            row_start=ready.row_start,
            mask=None if draft.shape.chain else ready.masks,
            features=self._features,
            picked=ready.picked,
        )
        _ids(chosen, len(ready.picked)).copy_(done.chosen)
        for place, states in ((features, done.features), (hidden, done.hidden)):
            c_void_p.from_address(place).value = 0 if states is None else states.data_ptr()


def _ids(address: int, *shape: int) -> Tensor:
    return _at(address, c_int64, torch.int64, shape)


def _floats(address: int, *shape: int) -> Tensor:
    return _at(address, ctypes.c_float, torch.float32, shape)


def _at(address: int, kind: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor over the call's own memory, valid until the hook returns."""
    numbers = (kind * torch.Size(shape).numel()).from_address(address)
    return torch.frombuffer(numbers, dtype=dtype).view(shape)
