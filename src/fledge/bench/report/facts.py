"""The report's contents besides the benchmark: data, training, commands. Every part is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fledge.base.errors import StorageError
from fledge.base.storage import Manifest, exists, file_size, join
from fledge.bench.load import LoadResult
from fledge.bench.results import BenchResult, read_rows
from fledge.data import conversation_statistics, prompt_summary, read_conversations
from fledge.heads import Head
from fledge.heads.checkpoint import CONFIG_NAME, WEIGHTS_NAME

Curve = Sequence[tuple[float, float]]  # (training step, value)
_SOURCES = {
    "self": "The target wrote the prompts itself, from the bare start of a user turn in its own template, and answered "
    "them: no data from elsewhere."
}


@dataclass(frozen=True)
class DataFacts:
    """The head's training data."""

    conversations: int
    response_tokens: int
    heldout: int = 0  # conversations kept out of training
    rejected: Mapping[str, int] = field(default_factory=dict)  # reason -> prompts
    categories: Mapping[str, int] = field(default_factory=dict)  # category -> conversations
    greedy_share: float | None = None  # of the conversations; the rest is sampled
    draft_vocabulary: int | None = None
    coverage: float | None = None  # share of response tokens that the draft vocabulary can propose
    source: str = ""  # a sentence about the prompts' origin


@dataclass(frozen=True)
class TrainingFacts:
    """The course of training."""

    loss: Curve = ()
    tau: Curve = ()  # on held-out conversations
    kept: tuple[float, float] | None = None  # step and tau of the best weights, if these are the head
    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None  # supervised tokens seen, epochs included
    seconds: float | None = None
    parameters: int | None = None
    head_bytes: int | None = None


@dataclass(frozen=True)
class ReportFacts:
    """Everything in the report."""

    target: str
    bench: BenchResult | None = None
    load: LoadResult | None = None  # over HTTP
    data: DataFacts | None = None
    training: TrainingFacts | None = None
    stages: Mapping[str, float] = field(default_factory=dict)  # name -> seconds
    commands: Sequence[str] = ()
    serve: str = ""  # the command that serves the head
    recipe: str = ""  # YAML
    note: str = ""  # the recipe's
    notes: Sequence[str] = ()
    created: str = ""  # date and time, as shown


def data_facts(conversations: str, prompts: str | None = None, head: Head | None = None) -> DataFacts | None:
    """Facts about a folder of conversations (and its folder of prompts).

    With a head, also the share of generated tokens in its draft vocabulary, over the training split.
    """
    if not Manifest.load(conversations).records:
        return None
    statistics = conversation_statistics(conversations)
    accepted = prompt_summary(prompts) if prompts and Manifest.load(prompts).records else None
    coverage, sources = _coverage_and_sources(conversations, head)
    greedy = statistics.temperatures.get(0.0, 0)
    return DataFacts(
        conversations=statistics.conversations,
        response_tokens=statistics.supervised_tokens,
        heldout=statistics.heldout,
        rejected=accepted.rejected if accepted else {},
        categories=statistics.categories,
        greedy_share=greedy / statistics.conversations,
        draft_vocabulary=head.config.draft_vocab_size if head else None,
        coverage=coverage,
        source=" ".join(_SOURCES.get(source, f"Prompts from {source}.") for source in sources),
    )


def training_facts(head_url: str, metrics: str) -> TrainingFacts | None:
    """Training record of a head: the curves of its trainer's `metrics.jsonl`, and the facts in its config."""
    if not exists(metrics) or not exists(join(head_url, CONFIG_NAME)):
        return None
    rows, head = read_rows(metrics, "fledge train"), Head.load(head_url)
    if not all(isinstance(row, dict) and {"step", "seconds"} <= row.keys() for row in rows):
        raise StorageError(
            f"{metrics} isn't what `fledge train` writes; delete it, and the report has no curves"
        )
    facts = head.metadata.training
    tokens, epochs = facts.get("supervised_tokens"), facts.get("epochs")
    return TrainingFacts(
        loss=_curve(rows, "loss"),
        tau=_curve(rows, "tau"),
        kept=(facts["kept_step"], facts["tau"]) if "kept_step" in facts else None,
        steps=int(facts["steps"]) if "steps" in facts else None,
        epochs=epochs,
        tokens=round(tokens * epochs) if tokens is not None and epochs is not None else None,
        seconds=rows[-1]["seconds"] if rows else None,
        parameters=sum(tensor.numel() for tensor in head.weights.trainable().values()),
        head_bytes=file_size(join(head_url, WEIGHTS_NAME)),
    )


def _curve(rows: list[dict[str, Any]], key: str) -> Curve:
    return [(row["step"], row[key]) for row in rows if row.get(key) is not None]


def _coverage_and_sources(conversations: str, head: Head | None) -> tuple[float | None, list[str]]:
    vocabulary = set(head.vocabulary.token_ids.tolist()) if head else set()
    sources: dict[str, None] = {}
    inside = total = 0
    for conversation in read_conversations(conversations):
        sources[conversation.source] = None
        if head is None or conversation.split != "train":
            continue
        pairs = zip(conversation.token_ids, conversation.loss_mask, strict=True)
        generated = [token for token, mask in pairs if mask]
        inside += sum(token in vocabulary for token in generated)
        total += len(generated)
    return (inside / total if total else None), list(sources)
