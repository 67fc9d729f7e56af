"""Facts for the report, read from a run's folders. What isn't there is None, and the report leaves it out."""

from __future__ import annotations

from typing import Any

from fledge.bench.report.facts import Curve, DataFacts, TrainingFacts
from fledge.bench.results import read_rows
from fledge.data import conversation_statistics, prompt_summary, read_conversations
from fledge.draft import Head
from fledge.draft.checkpoint import WEIGHTS_NAME
from fledge.storage import Manifest, exists, file_size, join

_SOURCES = {
    "self": "The target wrote the prompts itself, from the bare start of a user turn in its own template, and answered "
    "them: no data from elsewhere."
}


def data_facts(conversations: str, prompts: str | None = None, head: Head | None = None) -> DataFacts | None:
    """What a folder of conversations (and the folder of prompts behind it) holds.

    With a head, also the share of generated tokens that its draft vocabulary holds, counted over the training split.
    """
    if not Manifest.load(conversations).records:
        return None
    found = conversation_statistics(conversations)
    kept = prompt_summary(prompts) if prompts and Manifest.load(prompts).records else None
    coverage, sources = _coverage_and_sources(conversations, head)
    greedy = found.temperatures.get(0.0, 0)
    return DataFacts(
        conversations=found.conversations,
        response_tokens=found.supervised_tokens,
        heldout=found.heldout,
        prompts=kept.prompts if kept else None,
        rejected=kept.rejected if kept else {},
        categories=found.categories,
        greedy_share=greedy / found.conversations,
        draft_vocabulary=head.config.draft_vocab_size if head else None,
        vocabulary_size=head.config.vocab_size if head else None,
        coverage=coverage,
        source=" ".join(_SOURCES.get(source, f"Prompts from {source}.") for source in sources),
    )


def training_facts(head_url: str, metrics: str) -> TrainingFacts | None:
    """How a head was trained: the curves of its trainer's `metrics.jsonl`, and the facts in its config."""
    if not exists(metrics) or not exists(join(head_url, WEIGHTS_NAME)):
        return None
    rows, head = read_rows(metrics, "fledge train"), Head.load(head_url)
    facts = head.metadata.training
    tokens, epochs = facts.get("supervised_tokens"), facts.get("epochs")
    return TrainingFacts(
        loss=_curve(rows, "loss"),
        tau=_curve(rows, "tau"),
        steps=int(facts["steps"]) if "steps" in facts else None,
        epochs=epochs,
        tokens=round(tokens * epochs) if tokens is not None and epochs is not None else None,
        seconds=rows[-1]["seconds"] if rows else None,
        parameters=sum(tensor.numel() for tensor in head.weights.trainable().values()),
        head_bytes=file_size(join(head_url, WEIGHTS_NAME)),
    )


def _curve(rows: list[dict[str, Any]], key: str) -> Curve | None:
    known = [(int(row["step"]), row[key]) for row in rows if row.get(key) is not None]
    return Curve([step for step, _ in known], [value for _, value in known]) if known else None


def _coverage_and_sources(conversations: str, head: Head | None) -> tuple[float | None, list[str]]:
    known = set(head.vocabulary.token_ids.tolist()) if head else set()
    sources: dict[str, None] = {}
    inside = total = 0
    for conversation in read_conversations(conversations):
        sources[conversation.source] = None
        if head is None or conversation.split != "train":
            continue
        made = [t for t, own in zip(conversation.token_ids, conversation.loss_mask, strict=True) if own]
        inside += sum(token in known for token in made)
        total += len(made)
    return (inside / total if total else None), list(sources)
