"""A head on the CPU kernels that proposes what a script says: `ContextHead` for rounds in one C++ call.

The head's own forwards run, and what they propose is overwritten where C++ asks Python what it may draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_void_p, cast
from typing import Any

import pytest
import torch

from fledge.draft.cpu import NativeHeadRunner
from fledge.draft.runner import HeadRunner
from fledge.engine.rounds import hooks
from fledge.engine.rounds.hooks import RoundHooks
from fledge.engine.rounds.native import NativeRound
from fledge.engine.rounds.native_draft import NativeDraft
from fledge.heads import Head, head_runner
from fledge.target.target import Target
from tests.engine.context_head import Context, ContextHead


def scripted_runner(target: Target, head: Head, script: ContextHead) -> HeadRunner:
    """A real head on the kernels, and the script that is proposed instead."""
    runner = head_runner(target, head)
    assert isinstance(runner, NativeHeadRunner)
    runner.script = script  # type: ignore[attr-defined]
    return runner


class ScriptedHooks(RoundHooks):
    """Follows the frontier's nodes down, and says what each of them is followed by."""

    def __init__(self, script: ContextHead, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._script = script
        self._call = hooks._ALLOW(self._guarded(self._allow))
        self.raw.allow = cast(self._call, c_void_p).value

    def _allow(self, level: int, frontier: int, parents: int, children: int, log_probs: int) -> None:
        size, topk = self._batch.size, self._topk
        width = self._first_level if level == 0 else topk
        if level == 0:
            requests = self._target.selection._requests
            self._paths: list[Context] = [tuple(r.context(1, r.length)) for r in requests]
        elif level == 1:
            tokens = hooks._ids(frontier, size, topk).tolist()
            self._paths = [(*path, t) for path, row in zip(self._paths, tokens, strict=True) for t in row]
        else:
            above, tokens = (
                hooks._ids(parents, size * topk).tolist(),
                hooks._ids(frontier, size * topk).tolist(),
            )
            self._paths = [(*self._paths[p], t) for p, t in zip(above, tokens, strict=True)]
        if topk:
            proposed = [self._script._propose(path, width) for path in self._paths]
            hooks._ids(children, len(proposed), width).copy_(torch.tensor([ids for ids, _ in proposed]))
            hooks._floats(log_probs, len(proposed), width).copy_(torch.tensor([s for _, s in proposed]))
        if self._guide is not None:
            super()._allow(level, frontier, parents, children, log_probs)


def _scripted(ordinary: Callable[..., RoundHooks | None]) -> Callable[..., RoundHooks | None]:
    def made_for(rounds: NativeRound, made: NativeDraft, plan: Any, *, recent: bool) -> RoundHooks | None:
        runner = None if rounds.drafter is None else rounds.drafter.runner
        script = getattr(runner, "script", None)
        if script is None or rounds.drafter is None or not plan.drafts:
            return ordinary(rounds, made, plan, recent=recent)
        first, topk = rounds.drafter.sizes.topk, plan.bound.topk
        return ScriptedHooks(
            script, rounds.target, rounds.batch, made, first_level=first, topk=topk, features=True
        )

    return made_for


@contextmanager
def scripts_are_followed() -> Iterator[None]:
    """Engines with a scripted runner propose what its script says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeRound, "_hooks", _scripted(NativeRound._hooks))
        yield
