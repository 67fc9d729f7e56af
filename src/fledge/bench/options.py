"""Options of `fledge bench`, and types shared by the options of all benchmarks."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from fledge.base.options import RecipePart
from fledge.engine.options import CudaGraphs, DraftWeightsOption, LookupTokens, Overlap


def _numbers(kind: str) -> BeforeValidator:
    """Reads the numbers of `1,2,4`; anything but a text is left as it is."""

    def numbers(text: object) -> object:
        if not isinstance(text, str):
            return text
        try:
            given = [float(part) for part in text.rstrip(",").split(",")]
        except ValueError:
            raise ValueError(f"use {kind} with commas") from None
        return [int(number) if number.is_integer() else number for number in given]

    return BeforeValidator(numbers)


Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
Listed = _numbers("numbers")
Levels = Annotated[tuple[Count, ...], Field(min_length=1), _numbers("whole numbers")]
AnswerTokens = Annotated[int, Field(ge=2)]  # a single token has no time per output token
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class BenchOptions(RecipePart):
    """The benchmark's part of a recipe. The defaults are the full benchmark; a demo measures less."""

    own_prompts: int | None = Field(
        default=None, ge=0, description="prompts of the own mixed set; null: all 80, 0: none"
    )
    prompts: tuple[str, ...] = Field(default=(), description="further JSONL files of prompts (`turns`)")
    sets: tuple[str, ...] = Field(
        default=(),
        description="own sets of one kind each, 40 prompts: multi_turn, code, mathematics, summarisation, translation, "
        "question_answering, long_context",
    )
    heldout_prompts: CountOrNone = Field(
        default=0,
        description="held-out prompts of the run itself, those of its sources first; their answers weren't trained on",
    )
    prompts_limit: int | None = Field(
        default=None, ge=1, description="prompts taken from each further file or set; null: all"
    )
    draft_weights: DraftWeightsOption = None
    max_tokens: Count = Field(default=128, description="new tokens per answer")
    temperature: float = Field(
        default=0.0, ge=0, description="of the answers; 0: greedy. A prompt's number in its set is its seed"
    )
    repeats: Count = Field(
        default=2, description="times each prompt is run; 2 makes plain, head, head, plain (ABBA)"
    )
    lookup: LookupTokens = None
    without_lookup: bool = Field(
        default=False, description="also measure the first head without prompt lookup, as a head of its own"
    )
    warmup: CountOrNone = Field(default=2, description="prompts run beforehand and not counted")
    max_seconds: float | None = Field(
        default=None, gt=0, description="per workload: no new prompt after this time"
    )
    samples: CountOrNone = Field(default=3, description="answers kept for the report's coloured samples")
    concurrency: tuple[Count, ...] = Field(
        default=(1, 2, 4, 8, 16, 32), description="requests in flight; empty: no sweep"
    )
    random_head: bool = Field(
        default=True, description="the sweep also has a head of random weights: what the worst of heads costs"
    )
    sweep_tokens: Count = Field(
        default=128,
        description="new tokens per answer in the sweep, on average: half to one and a half times as many",
    )
    sweep_requests: Count = Field(
        default=4, description="requests per level: this many, or two per slot if that is more"
    )
    sweep_repeats: Count = Field(
        default=3, description="of each level, all engines side by side, after one that isn't counted"
    )
    bandwidth: bool = Field(
        default=True, description="measure raw read bandwidth, for the limit of plain decode"
    )
    overlap: Overlap = None
    cuda_graphs: CudaGraphs = None

    @property
    def decoding(self) -> str:
        """Description of how tokens are sampled."""
        return f"sampled at temperature {self.temperature:g}" if self.temperature else "greedy"
