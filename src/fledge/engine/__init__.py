"""The engine: requests of token ids in, tokens out, with speculation where that is faster.

To understand it, read these in this order; each begins with what it does and how.

    engine.py       the public `Engine`: prompts in, answers out. build.py makes what it holds, and chooses the backend
    core.py         the loop, `EngineCore.step`: prefill what waits, choose a plan, launch a round, deliver results
    flight.py       launches, and their results: at once on a CPU; on a GPU one round late, with overlap
    scheduler.py    which request does what next. pool.py: who has which KV page; prefix.py: pages that are shared
    rounds/         one round: propose -> verify -> accept -> commit -> follow; in torch, or in one C++ call
    drafters/       whatever proposes tokens: the head, prompt lookup, a drafter of your own
    planner/        how much to speculate in the next round

What they stand on:

    a request       request.py, params.py (sampling parameters), stops.py, detokenize.py
    prompts         prefill.py: the target over chunks of prompts, then the drafter
    between rounds  batch.py: what a request carries from round to round, on the device
    the target      forwards.py: a forward over the pool's pages, and the token each row yields
    choosing        sampling.py chooses a token; selection.py says how each request's rows choose: penalties.py,
                    logprobs.py, structured.py (answers of a wanted form; json_schema.py: what of a schema
                    counts; schema_faults.py: which part of it can't be held to)
    a plan          shapes.py: the trees there are; measure.py times forwards at start,
                    round_cost.py whole rounds
    around it       options.py, checks.py, memory.py, phases.py (where time goes), stats.py, record.py (what finished
                    requests leave to be learnt from)
"""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.engine.drafters.drafter import Candidates, Drafter
    from fledge.engine.drafters.lookup import Lookup
    from fledge.engine.drafters.proposer import Proposer, ProposerStats, RunningText
    from fledge.engine.engine import Engine, Piece, Prompt
    from fledge.engine.logprobs import TokenLogprob
    from fledge.engine.options import EngineOptions
    from fledge.engine.params import SamplingOptions, SamplingParams
    from fledge.engine.phases import PhaseSeconds
    from fledge.engine.request import Completion, CompletionStats, StepResult, TreeTrace
    from fledge.engine.shapes import PLAIN, TreeShape
    from fledge.engine.stats import EngineStats, PlannedShape
    from fledge.engine.stops import StopMatcher
    from fledge.engine.structured import GrammarsFullError
else:
    __getattr__ = on_first_use(__name__)

__all__ = [
    "PLAIN",
    "Candidates",
    "Completion",
    "CompletionStats",
    "Drafter",
    "Engine",
    "EngineOptions",
    "EngineStats",
    "GrammarsFullError",
    "Lookup",
    "PhaseSeconds",
    "Piece",
    "PlannedShape",
    "Prompt",
    "Proposer",
    "ProposerStats",
    "RunningText",
    "SamplingOptions",
    "SamplingParams",
    "StepResult",
    "StopMatcher",
    "TokenLogprob",
    "TreeShape",
    "TreeTrace",
]
