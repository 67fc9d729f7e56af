"""The engine: scheduler, KV pool, the round draft -> verify -> accept -> extend, tree planner."""

from fledge.engine.core import EngineStats
from fledge.engine.engine import Engine, Piece, Prompt
from fledge.engine.layout import PLAIN, TreeShape
from fledge.engine.phases import PhaseSeconds
from fledge.engine.planner import PlannedShape
from fledge.engine.request import Completion, CompletionStats, StepResult
from fledge.engine.sampling import SamplingParams

__all__ = [
    "PLAIN",
    "Completion",
    "CompletionStats",
    "Engine",
    "EngineStats",
    "PhaseSeconds",
    "Piece",
    "PlannedShape",
    "Prompt",
    "SamplingParams",
    "StepResult",
    "TreeShape",
]
