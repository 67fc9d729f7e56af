"""The engine: requests of token ids in, tokens out, with speculation where that is faster.

To understand it, read these in this order; each begins with what it does and how.

    engine.py       the public `Engine`: prompts in, answers out. build.py makes what it holds
    core.py         the loop, `EngineCore.step`: prefill what waits, choose a plan, launch a round, deliver results
    lane.py         runs that work beside the host and brings results back: the future map, for overlap
    scheduler.py    which request does what next. pool.py: who has which KV page; prefix.py: pages that are shared
    round.py        one round: draft -> verify -> accept -> extend, in torch
    planner/        how much to speculate in the next round

What they stand on:

    a request       request.py, params.py (sampling parameters), stops.py, detokenize.py
    prompts         prefill.py
    between rounds  carried.py: what a request carries from round to round, on the device
    forwards        forwards.py: target and head over the pool's pages; layout.py: constant index tensors
    draft           growth.py grows the trees; lookup.py is prompt lookup, merge.py merges it into the tree
    choosing        sampling.py chooses a token; selection.py says how each request's rows choose: penalties.py,
                    logprobs.py, structured.py (answers of a wanted form; guided.py: drafts of that form)
    a plan          shapes.py: the trees there are; measure.py times forwards for the planner at start
    results         outcome.py: what a round's parts hand on; result.py: what the host gets of it
    native rounds   native_round.py, native_plain.py: a round in one C++ call; native_tree.py: its steps one by one
    CUDA graphs     graphs.py
    around it       options.py, checks.py, memory.py, phases.py (where time goes), stats.py
"""

from fledge.engine.engine import Engine, Piece, Prompt
from fledge.engine.logprobs import TokenLogprob
from fledge.engine.options import EngineOptions
from fledge.engine.params import SamplingOptions, SamplingParams
from fledge.engine.phases import PhaseSeconds
from fledge.engine.request import Completion, CompletionStats, StepResult, TreeTrace
from fledge.engine.shapes import PLAIN, PlannedShape, TreeShape
from fledge.engine.stats import EngineStats
from fledge.engine.stops import StopMatcher

__all__ = [
    "PLAIN",
    "Completion",
    "CompletionStats",
    "Engine",
    "EngineOptions",
    "EngineStats",
    "PhaseSeconds",
    "Piece",
    "PlannedShape",
    "Prompt",
    "SamplingOptions",
    "SamplingParams",
    "StepResult",
    "StopMatcher",
    "TokenLogprob",
    "TreeShape",
    "TreeTrace",
]
