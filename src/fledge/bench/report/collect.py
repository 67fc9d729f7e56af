"""Facts for the report, read from a run's folders. What isn't there is None, and the report leaves it out."""

from __future__ import annotations

from fledge.bench.report.facts import DataFacts
from fledge.data import conversation_statistics, prompt_summary, read_conversations
from fledge.draft import Head
from fledge.storage import Manifest

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
