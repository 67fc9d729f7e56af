"""What the report tells besides the benchmark: the data, the training, the commands. Every part may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fledge.bench.load import LoadResult
from fledge.bench.results import BenchResult


@dataclass(frozen=True)
class DataFacts:
    """What the head was trained on."""

    conversations: int
    response_tokens: int
    heldout: int = 0  # conversations kept out of training
    prompts: int | None = None  # accepted prompts
    rejected: Mapping[str, int] = field(default_factory=dict)  # reason -> prompts
    categories: Mapping[str, int] = field(default_factory=dict)  # category -> conversations
    greedy_share: float | None = None  # of the conversations; the rest is sampled
    tokens_per_second: float | None = None  # while responding
    draft_vocabulary: int | None = None
    vocabulary_size: int | None = None
    coverage: float | None = None  # share of response tokens that the draft vocabulary can propose
    source: str = ""  # a sentence on where the prompts come from


@dataclass(frozen=True)
class Curve:
    """A quantity over training steps."""

    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class TrainingFacts:
    """How training went."""

    loss: Curve | None = None
    tau: Curve | None = None  # on held-out conversations
    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None  # supervised tokens seen, epochs included
    seconds: float | None = None
    parameters: int | None = None
    head_bytes: int | None = None


@dataclass(frozen=True)
class ReportFacts:
    """All the report shows. `heads` says what to call each head of the benchmark."""

    target: str
    bench: BenchResult | None = None
    load: LoadResult | None = None  # measured over HTTP
    data: DataFacts | None = None
    training: TrainingFacts | None = None
    released: TrainingFacts | None = None  # how the head that ships with the package was made
    released_data: DataFacts | None = None
    stages: Mapping[str, float] = field(default_factory=dict)  # name -> seconds
    commands: Sequence[str] = ()
    recipe: str = ""  # YAML
    notes: Sequence[str] = ()
    created: str = ""  # date and time, as shown
    labels: Mapping[str, str] = field(default_factory=dict)  # head name -> what the report calls it
