"""The engine: scheduler, KV pool, the round draft -> verify -> accept -> extend, tree planner."""

from fledge.engine.engine import Engine, Piece, Prompt
from fledge.engine.layout import PLAIN, TreeShape
from fledge.engine.logprobs import TokenLogprob
from fledge.engine.options import EngineOptions
from fledge.engine.params import SamplingOptions, SamplingParams
from fledge.engine.phases import PhaseSeconds
from fledge.engine.request import Completion, CompletionStats, StepResult, TreeTrace
from fledge.engine.shapes import PlannedShape
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
