"""Rounds as CUDA graphs: a round's kernels are recorded once, and launched again by one call.

A round is hundreds of small kernels, and for a small target launching them takes longer than running them. On a GPU
a round reads no value on the host and has fixed shapes, so that all of it can be recorded: draft, verify, accept,
extend. Which kernels these are depends on a `RoundKey` alone. A replay reads the same memory as the recording did:

    carried state, KV pools                 are never allocated anew
    how tokens are chosen, who speculates,  are written to the same memory ("settled") when the batch has changed
    what lookup's matches are worth

    round of a key   1, 2   launched one by one, which compiles and fills caches
                     3      recorded, then replayed
                     4 ..   replayed

What a replay leaves are the tensors of the recording. They are copied to the host before the next one (`flight.py`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from fledge.base.errors import EngineError
from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.drafter import Drafter
from fledge.engine.phases import PhaseClock
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.rounds.torch import Outcome, TorchRounds
from fledge.engine.rounds.verifier import Verifier
from fledge.engine.shapes import TreeShape

T = TypeVar("T")

_LAUNCHED = 2  # rounds of a key before it is recorded
_MOST = 64  # recordings kept; the one not used for longest goes


class RoundKey(NamedTuple):
    """What a round's kernels depend on."""

    requests: int
    shape: TreeShape
    some_speculate: bool
    all_speculate: bool
    choice: str  # `SelectionRows.choice`
    history: int  # tokens of the histories that lookup sees


class Recording(NamedTuple, Generic[T]):
    """Kernels that can be launched again."""

    made: T  # tensors that every replay writes again
    replay: Callable[[], None]


class Recorder(Protocol):
    """How kernels are recorded."""

    def record(self, work: Callable[[], T]) -> Recording[T]:
        """Note what `work` launches, without running it. Raises if it reads a value or writes one from the host."""


class CudaRecorder:
    """CUDA graphs (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs) that share their memory.

    Sharing is safe: replays follow each other on one stream, and what a recording returns is kept.
    """

    def __init__(self, device: torch.device) -> None:
        """Raises EngineError where rounds can't be recorded."""
        if device.type != "cuda":
            raise EngineError(
                f"cuda_graphs needs a target on a CUDA device, and this one is on {device}; leave it out"
            )
        if find_spec("triton") is None:
            raise EngineError(
                "cuda_graphs needs the Triton kernels, for attention in plain torch reads lengths on the host; run "
                'pip install "fledge[gpu]", or leave cuda_graphs out'
            )
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], T]) -> Recording[T]:
        """See `Recorder.record`."""
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            made = work()
        return Recording(made, graph.replay)


class RecordedRounds:
    """The recordings of one engine."""

    def __init__(self, recorder: Recorder, most: int = _MOST) -> None:
        self.recorded = self.replayed = 0  # how often
        self._recorder, self._most = recorder, most
        self._kept: OrderedDict[RoundKey, Recording[Any]] = OrderedDict()
        self._launched: Counter[RoundKey] = Counter()

    def run(self, key: RoundKey, work: Callable[[], T]) -> T:
        """What `work`, a round of this key, returns."""
        if self._launched[key] < _LAUNCHED:
            self._launched[key] += 1
            return work()
        kept: Recording[T] | None = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = self._record(work)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        kept.replay()
        self.replayed += 1
        return kept.made

    def alone(self, work: Callable[[], object]) -> Callable[[], None]:
        """A call that replays `work`, which must have run before."""
        return self._record(work).replay

    def _record(self, work: Callable[[], T]) -> Recording[T]:
        self.recorded += 1
        try:
            return self._recorder.record(work)
        except RuntimeError as error:
            raise EngineError(
                f"a round's kernels can't be recorded ({error}); start the engine without cuda_graphs, and report this"
            ) from error


class GraphRounds(TorchRounds):
    """`TorchRounds` that are recorded and replayed, where a round can be."""

    def __init__(
        self,
        target: Verifier,
        batch: RunningBatch,
        drafter: Drafter | None,
        clock: PhaseClock,
        recorded: RecordedRounds,
    ) -> None:
        super().__init__(target, batch, drafter, clock)
        self.recorded, self._selection = recorded, target.selection

    def round(self, plan: RoundPlan) -> Outcome:
        """As in `TorchRounds`."""
        choice, speculating = self._selection.choice, self.batch.speculating()
        if choice is None:
            return super().round(plan)
        history = self.batch.history().shape[1]
        key = RoundKey(
            self.batch.size, plan.bound, speculating.some, speculating.mask is None, choice, history
        )
        self._selection.settle()
        plan.match_rates.log_rates(self.batch.device)
        done = self.recorded.run(key, partial(super().round, plan))
        self.clock.lap("verify")
        return done
