"""Rounds as CUDA graphs: a round's kernels are recorded when the engine starts, and launched by one call from then on.

A round is hundreds of small kernels, and for a small target launching them takes longer than running them. On a GPU
a round reads no value on the host and has fixed shapes, so that all of it can be recorded: draft, verify, accept,
extend. What a replay reads lies where it lay for the recording:

    carried state, KV pools                 are never reallocated
    how tokens are chosen, who speculates,  are written to the same memory ("settled") before a replay
    what lookup's matches are worth

Recordings are few: by `RoundKey`, for some numbers of rows and some trees. A batch runs in the next larger number of
rows, and what is too much is padding, which reads and writes the unowned page (`PaddedBatch.settle`):

    3 requests, recorded for 4 rows     row    0     1     2     3
                                        length 37    112   5     0
                                        pages  7 2   9 4   3     0      page 0 is unowned

A round without a recording is launched kernel by kernel; none is made while requests run. What a replay leaves are the
tensors of the recording. They are copied to the host before the next one (`flight.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from fledge.base.device import map_tensors
from fledge.base.errors import EngineError
from fledge.engine.drafters.drafter import Drafter
from fledge.engine.memory import free_memory
from fledge.engine.phases import PhaseClock
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.rounds.padding import PaddedBatch
from fledge.engine.rounds.rounds import Outcome
from fledge.engine.rounds.torch import TorchRound
from fledge.engine.rounds.verifier import Verifier
from fledge.engine.shapes import PLAIN, TreeShape

T = TypeVar("T")
logger = logging.getLogger("fledge.engine")

# Trees that the planner chooses from where rounds are recorded: on simulated H100s and H200s the best of them is within
# 5 % of the best tree of all, from 1 to 128 requests.
TREES = tuple(
    TreeShape(*numbers)
    for numbers in ((1, 1, 2), (2, 1, 3), (4, 2, 5), (3, 4, 8), (5, 4, 12), (3, 8, 24), (7, 8, 32))
)
_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # rows of a plain round
_CHOICES = ("greedy", "drawn", "filtered")  # `SelectionRows.choice`
_MOST = 256  # recordings
# Target rows in a recorded round with a tree: more keep a GPU busy for longer than launches take.
_MOST_ROWS = 512


class RoundKey(NamedTuple):
    """Key of a recorded round: everything its kernels depend on."""

    requests: int  # padding included
    shape: TreeShape
    choice: str  # `SelectionRows.choice`


class Recording(NamedTuple, Generic[T]):
    """Kernels that can be launched again."""

    made: T  # tensors that every replay writes again
    replay: Callable[[], None]


class Recorder(Protocol):
    """Interface for recording kernels."""

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
        self._stream = torch.cuda.Stream(device)  # recordings that share memory have to share this, too

    def record(self, work: Callable[[], T]) -> Recording[T]:
        """See `Recorder.record`."""
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            made = work()
        return Recording(made, graph.replay)


def record(recorder: Recorder, work: Callable[[], T]) -> Recording[T]:
    """`Recorder.record`, with an EngineError that says what to do."""
    try:
        return recorder.record(work)
    except RuntimeError as error:
        raise EngineError(
            f"a round's kernels can't be recorded ({error}); start the engine with cuda_graphs=False (fledge serve "
            "--no-cuda-graphs), and report this"
        ) from error


def keys(max_batch: int, trees: Sequence[TreeShape]) -> list[RoundKey]:
    """The rounds to record for up to so many requests, most useful first: plain rounds, and those with these trees."""
    batches = [rows for rows in _BATCHES if rows < max_batch] + [max_batch]
    # Large rounds first: smaller ones find room in the memory that they have left.
    found = (
        RoundKey(requests, shape, choice)
        for choice, shape, requests in product(_CHOICES, (PLAIN, *trees), reversed(batches))
        if shape == PLAIN or requests * shape.nodes <= _MOST_ROWS
    )
    return list(found)[:_MOST]


def trees_for(requests: int) -> list[TreeShape]:
    """Trees of `TREES` that are recorded for so many requests."""
    return [shape for shape in TREES if requests * shape.nodes <= _MOST_ROWS]


class GraphRound:
    """A `TorchRound` that is replayed where it was recorded."""

    def __init__(
        self,
        target: Verifier,
        batch: PaddedBatch,
        drafter: Drafter | None,
        clock: PhaseClock,
        recorder: Recorder,
    ) -> None:
        """None is recorded yet."""
        self.torch = TorchRound(target, batch, drafter, clock)
        self.batch, self.clock, self.recorder, self._selection = batch, clock, recorder, target.selection
        self._recordings: dict[RoundKey, Recording[Outcome]] = {}
        self._batches: list[int] = []  # recorded numbers of rows
        self.replayed = 0  # rounds

    def record(self, wanted: Sequence[RoundKey], plan: Callable[[TreeShape], RoundPlan], room: int) -> None:
        """Record these rounds while no request runs, each after a launch that compiles its kernels and fills caches.

        `plan`: makes the plan of a tree. It ends early if less than `room` bytes are left on the device.
        """
        begun, free = time.perf_counter(), free_memory(self.batch.device)
        left = free
        for key in wanted:
            left = free_memory(self.batch.device)
            if left < room:
                break
            self.batch.settle(key.requests)
            work = partial(self._padded, key, plan(key.shape))
            work()
            self._recordings[key] = record(self.recorder, work)
        self._batches = sorted({key.requests for key in self._recordings})
        logger.info(
            "recorded %d of %d rounds as CUDA graphs in %.1f s, %.2f GiB",
            len(self._recordings), len(wanted), time.perf_counter() - begun, (free - left) / 2**30,
        )  # fmt: skip

    def run(self, plan: RoundPlan) -> Outcome:
        """See `Round`."""
        size = self.batch.size
        recording = self._recordings.get(key) if (key := self._key(plan)) is not None else None
        if key is None or recording is None:
            return self.torch.run(plan)
        self.batch.settle(key.requests)
        plan.match_rates.log_rates(self.batch.device)
        recording.replay()
        self.replayed += 1
        self.clock.lap("verify")
        done: Outcome = map_tensors(recording.made, lambda rows: rows[:size])
        return done

    def _key(self, plan: RoundPlan) -> RoundKey | None:
        """Key of the recording that this round needs; None: it can't be recorded."""
        rows = next((rows for rows in self._batches if rows >= self.batch.size), None)
        choice = self._selection.choice
        return None if rows is None or choice is None else RoundKey(rows, plan.bound, choice)

    def _padded(self, key: RoundKey, plan: RoundPlan) -> Outcome:
        with self.batch.padded(key.requests), self._selection.recording(key.requests, key.choice):
            return self.torch.run(plan)

    def passed(self, done: Outcome) -> list[int]:
        """See `Round`."""
        return self.torch.passed(done)
