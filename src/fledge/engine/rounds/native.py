"""`TorchRound` in one C++ call, where target and head run on the CPU kernels (`native/round.cpp`).

A verify reads all weights, after which nothing of Python is in the processor's caches: a torch operation that takes
5 us takes 30 to 60 then. So a round is one call, with the head, with prompt lookup alone or plain. On top of
`TorchRound` it may stop a tree early by the tree's own probabilities, and give each request as many nodes as it is
worth (`planner/plan.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_double, c_int, c_int64

import torch

from fledge.draft.cpu import NativeHeadRunner
from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.eagle import Eagle
from fledge.engine.drafters.proposal import LONGEST
from fledge.engine.phases import PhaseClock
from fledge.engine.planner.plan import Kind, RoundPlan
from fledge.engine.rounds.hooks import RoundHooks
from fledge.engine.rounds.native_draft import NativeDraft
from fledge.engine.rounds.rounds import Outcome
from fledge.engine.rounds.tree import Accepted
from fledge.engine.rounds.verifier import Verifier
from fledge.engine.selection import Drawing
from fledge.native import abi
from fledge.native.build import library
from fledge.target.cpu import NativeDecoder


class NativeRound:
    """A round on the CPU kernels."""

    def __init__(
        self, target: Verifier, batch: RunningBatch, drafter: Eagle | None, clock: PhaseClock
    ) -> None:
        """The target's decoder is a `NativeDecoder`, the drafter's runner a `NativeHeadRunner`."""
        self.target, self.batch, self.drafter, self.clock = target, batch, drafter, clock
        self._bind()
        self._carried: dict[int, abi.CarriedState] = {}
        self._last: tuple[RoundPlan | None, abi.DraftTerms] = None, abi.DraftTerms()
        self._round: Callable[..., int] = library().fledge_round
        self._round.restype = c_int

    def run(self, plan: RoundPlan) -> Outcome:
        """See `Round`."""
        batch, drafter, clock, selection = self.batch, self.drafter, self.clock, self.target.selection
        size, bound = batch.size, plan.bound
        if drafter is not None and drafter.runner is not self._head:
            self._bind()  # the engine has got another head
        # The head has to be able to catch up; without room for that it is never run.
        recent = (
            not plan.drafts and drafter is not None and drafter.sizes.pending and batch.speculating().some
        )
        draft, drawing = NativeDraft(size, bound), selection.drawing()
        emitted = torch.empty(size * (bound.reach + 2), dtype=torch.int64)
        path = torch.empty(size * (bound.reach + 1), dtype=torch.int64)
        accepted = abi.Accepted(emitted.data_ptr(), path.data_ptr())
        states = None
        if self.target.records:
            states = torch.empty(size * (bound.reach + 1), self._state_width, dtype=torch.bfloat16)
            accepted.states = states.data_ptr()
        hooks = self._hooks(draft, plan, recent=bool(recent))
        arguments = (
            self._models,
            self._view(),
            self._terms(plan),
            _drawing(drawing),
            self._recent() if recent else abi.Recent(),
            abi.Hooks() if hooks is None else hooks.raw,
            draft.raw,
            accepted,
        )
        failed = self._round(*map(byref, arguments))
        if hooks is not None and failed:
            hooks.check()
        clock.add("verify" if plan.kind is Kind.PLAIN else "draft", accepted.draft)
        clock.add("verify", accepted.verify)
        clock.add("accept", accepted.accept)
        width = accepted.width
        emitted, path = emitted[: size * (1 + width)].view(size, -1), path[: size * width].view(size, -1)
        logprobs = None
        if hooks is not None and hooks.verified is not None:
            taken = Accepted(emitted[:, 0], path, emitted[:, 1:])
            logprobs = self.target.emit(hooks.verified, path + draft.ready.first_row[:, None], taken)
        if states is not None:
            states = states[: size * width].view(size, width, -1)
        clock.lap("extend")
        return Outcome(emitted, logprobs, draft, path, states)

    def passed(self, done: Outcome) -> list[int]:
        """See `Round`: as many positions as tokens were emitted."""
        counts: list[int] = done.emitted[:, 0].tolist()
        return counts

    def _hooks(self, draft: NativeDraft, plan: RoundPlan, *, recent: bool) -> RoundHooks | None:
        proposers = None
        if self.drafter is not None and plan.bound.lookup and self.batch.speculating().some:
            proposers = self.drafter.proposers
        if proposers is None and not self.target.selection.wants_logits:
            return None
        first = 0 if self.drafter is None else self.drafter.sizes.topk
        topk = plan.bound.topk if plan.drafts else 0
        features = plan.drafts or recent
        return RoundHooks(
            self.target, self.batch, draft,
            first_level=first, topk=topk, features=features, proposers=proposers,
        )  # fmt: skip

    def _bind(self) -> None:
        """Point at the models as they are now."""
        forward, drafter = self.target.target, self.drafter
        decoder, head = forward.decoder, None if drafter is None else drafter.runner
        assert isinstance(decoder, NativeDecoder)
        assert isinstance(head, NativeHeadRunner | None)
        c = decoder.config
        self._head, self._state_width = head, 4 * c.hidden_size
        self._models = abi.RoundModels(
            decoder.pointer,
            None if head is None else head.pointer,
            None if drafter is None else drafter.kv.data_ptr(),
            forward.kv.data_ptr(), forward.kv.shape[1], forward.last_position, c.num_layers, c.num_kv_heads, c.head_dim,
        )  # fmt: skip

    def _view(self) -> abi.CarriedState:
        """State carried for the running requests, as the kernels read it."""
        size = self.batch.size
        if size not in self._carried:
            now, drafter = self.batch.view(), self.drafter
            pages, history = now.page_table.shape[1], now.history.shape[1]
            carried = [now.length, now.bonus, now.page_table]
            topk = 0
            if drafter is not None:
                topk = drafter.sizes.topk
                carried += [*drafter.view(size)[:-2], now.history]
            pointers = [tensor.data_ptr() for tensor in carried]
            self._carried[size] = abi.CarriedState(size, pages, topk, history, *pointers)
        return self._carried[size]

    def _recent(self) -> abi.Recent:
        assert self.drafter is not None
        tokens, features = self.drafter.view(self.batch.size)[-2:]
        return abi.Recent(tokens.data_ptr(), features.data_ptr(), tokens.shape[1])

    def _terms(self, plan: RoundPlan) -> abi.DraftTerms:
        """The plan as the kernels read it, kept while the next rounds have the same plan."""
        last, raw = self._last
        if plan is not last:
            bound, terms = plan.bound, plan.terms
            raw = abi.DraftTerms(bound.depth, bound.topk, bound.nodes, bound.lookup, LONGEST)
            if terms is not None:
                points = len(terms.rows)
                raw.calibration = (c_double * len(terms.calibration))(*terms.calibration)
                raw.next = (c_double * len(terms.next_levels))(*terms.next_levels)
                raw.measured = (c_int64 * points)(*terms.rows)
                raw.costs = (c_double * points)(*terms.costs)
                raw.step, raw.points = terms.step, points
            self._last = plan, raw
        raw.log_rates = (
            plan.match_rates.log_rates(self.batch.device).data_ptr() if plan.bound.lookup else None
        )
        mask = self.batch.speculating().mask
        raw.speculates = None if mask is None else mask.data_ptr()
        return raw


def _drawing(drawing: Drawing | None) -> abi.Drawing:
    """It points into `drawing`; None: null pointers, greedily."""
    return (
        abi.Drawing() if drawing is None else abi.Drawing(drawing.filters.data_ptr(), drawing.keys.data_ptr())
    )
