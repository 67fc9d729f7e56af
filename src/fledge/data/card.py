"""The data card: what the training data consists of, for the people who approve it. It contains no record's text.

data-card.md     for reading
data-card.json   the same figures
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from fledge import __version__
from fledge.base import storage
from fledge.base.errors import DataError
from fledge.base.fingerprint import Fingerprint
from fledge.base.storage import Manifest, join
from fledge.data.conversations import conversation_rejects, conversation_statistics, read_conversations
from fledge.data.language import COVERED
from fledge.data.openings import DEFAULT_OPENINGS
from fledge.data.privacy import read_audit
from fledge.data.prompt_store import (
    pool_urls,
    prompt_summary,
    read_prompts,
    read_selection,
    reject_counts,
    traffic_url,
)
from fledge.data.prompts import RULE_PACKAGES, package_versions
from fledge.data.reasons import loss_lines, uncovered_languages
from fledge.data.sources.opening import DEFAULT_CATEGORY

CARD_NAME = "data-card"
_PACKAGES = ("torch", "transformers", "tokenizers", "pyarrow", "rensa", "datasets", "ray", *RULE_PACKAGES)
# Of values in texts that the rules have never seen, how many are found: docs/privacy.md has the same figures.
_RECALL = {"identifiers and secrets": "0.94", "names": "0.29 to 0.84", "places": "0.2 to 0.5"}
_RECALL_SOURCE = "corpora that others made, 2026-11-26, with the rules before these (docs/privacy.md)"
_NOT_SCANNED = (
    "personal data in base64, images, archives and other encodings",
    "names of fields in the descriptions of tools, and chat_template_kwargs",
    "rare names without a title, a greeting or a verb around them, nicknames, and indirect identification",
)
_OF_ROWS = "named by rows"  # categories that stand neither in the recipe nor in the shipped lists
_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def make_card(
    prompts_url: str,
    conversations_url: str | None,
    draft_vocabulary: Sequence[int] | None = None,
    privacy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All figures, as JSON.

    Args:
        draft_vocabulary: target ids the head can propose, for its coverage.
        privacy: counts of what the privacy filter found and did.

    Raises:
        DataError: the selection from the sources isn't finished.
    """
    selection = read_selection(prompts_url)
    if not selection and _made_from(prompts_url).get(
        "prompts.sources"
    ):  # otherwise they would count as written by the target
        raise DataError(f"the prompts in {prompts_url} aren't finished; run `fledge prompts` again to resume")
    summary = prompt_summary(prompts_url)
    parts = _made_from(prompts_url)
    known = _known_categories(parts)
    words = Counter(_bin(len(" ".join(p.turns).split())) for p in read_prompts(prompts_url))
    turns = Counter(len(prompt.turns) for prompt in read_prompts(prompts_url))
    origins = Counter((prompt.source, prompt.licence) for prompt in read_prompts(prompts_url))
    answered = (_made_from(conversations_url) or None) if conversations_url else None  # none yet
    card: dict[str, Any] = {
        "format": 1,
        "sources": [
            {**source, "path": without_credentials(source["path"])} for source in selection.get("sources", ())
        ]
        or [_own_source(summary.attempts, summary.rejected, summary.prompts)],
        "records_by_source_and_licence": [
            {"source": source, "licence": licence, "prompts": count}
            for (source, licence), count in sorted(origins.items())
        ],
        "prompts": {
            "rows_read": summary.attempts,
            "lacking": summary.losses,
            "rejected": summary.rejected,
            "not_needed": selection.get("surplus", 0),
            "kept": summary.prompts,
            "categories": _shown(summary.categories, known),
            "words": _ordered(words),
            "user_turns": {str(n): count for n, count in sorted(turns.items())},
        },
        "duplicates": {n: summary.rejected.get(n, 0) for n in ("repeat", "continued", "near_repeat")},
        "contamination": _contamination(prompts_url),
        "distance_to_traffic": _numbered(selection.get("distances", {}), known),
        "privacy": dict(privacy or {}),
        "languages": {
            "kept": parts.get("prompts.languages") or ["all"],
            "names_not_covered": uncovered_languages(summary.losses),
        },
        "personal_data": _personal_data(parts, answered),
        "made_from": {"prompts": _public(parts)}
        | ({} if answered is None else {"respond": _public(answered)}),
        "versions": _versions(),
    }
    if conversations_url is not None and Manifest.load(conversations_url).records:
        card["conversations"] = _conversations(conversations_url, draft_vocabulary)
    return card


def privacy_counts(prompts_url: str, conversations_url: str) -> dict[str, Any]:
    """Counts of what the privacy filter found and did, for `make_card`; empty without a filter."""
    places = {
        "prompts": [prompts_url, *pool_urls(prompts_url)],
        "traffic": [traffic_url(prompts_url)],
        "answers": [conversations_url],
    }
    audits = {name: read_audit(*urls) for name, urls in places.items()}
    return {name: audit.to_dict() for name, audit in audits.items() if audit.scanned}


def write_card(folder: str, card: Mapping[str, Any]) -> str:
    """Write both forms into a folder; returns the path of the Markdown file."""
    storage.write_json(join(folder, f"{CARD_NAME}.json"), card)
    place = join(folder, f"{CARD_NAME}.md")
    storage.write_atomic(place, render_card(card).encode())
    return place


def render_card(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {"cell": _cell, "flat": _flat}
    template = (resources.files("fledge.data") / "card.md.jinja").read_text(encoding="utf-8")
    prompts, distances = card["prompts"], card["distance_to_traffic"].items()
    rejected = {f"rejected: {reason}": count for reason, count in prompts["rejected"].items()}
    keys = ("name", "kind", "shape", "licence", "terms_declared_by", "rows", "fit", "chosen")
    return environment.from_string(template).render(
        card,
        source_rows=[[source[key] for key in keys] for source in card["sources"]],
        steps={
            "rows read": prompts["rows_read"],
            **rejected,
            "fit, but not needed": prompts["not_needed"],
            "kept": prompts["kept"],
        },
        lacking=loss_lines(prompts["lacking"]),
        distance_rows=[[n, d["traffic"], d["chosen"], d["before"], d["after"]] for n, d in distances],
    )


def _conversations(url: str, draft_vocabulary: Sequence[int] | None) -> dict[str, Any]:
    statistics = conversation_statistics(url)
    proposable = frozenset(draft_vocabulary or ())
    prompt_tokens: Counter[str] = Counter()
    answer_tokens: Counter[str] = Counter()
    inside = 0
    for conversation in read_conversations(url):
        generated = conversation.supervised_tokens
        answer_tokens[_bin(generated)] += 1
        prompt_tokens[_bin(len(conversation.token_ids) - generated)] += 1
        pairs = zip(conversation.token_ids, conversation.loss_mask, strict=True)
        inside += sum(token in proposable for token, generated in pairs if generated)
    return {
        "conversations": statistics.conversations,
        "held_out": statistics.heldout,
        "prompts_answered": statistics.prompts,
        "rejected_or_ended_early": conversation_rejects(url),
        "answers": statistics.turns,
        "generated_tokens": statistics.supervised_tokens,
        "reasoning_tokens": statistics.reasoning_tokens,
        "finish_reasons": statistics.finish_reasons,
        "temperatures": {str(t): count for t, count in statistics.temperatures.items()},
        "tokens_given": _ordered(prompt_tokens),
        "tokens_generated": _ordered(answer_tokens),
        "draft_vocabulary": len(proposable) or None,
        "draft_vocabulary_coverage": round(inside / statistics.supervised_tokens, 4) if proposable else None,
    }


def _own_source(rows: int, rejected: Mapping[str, int], kept: int) -> dict[str, Any]:
    return {
        "name": "self",
        "kind": "self",
        "path": "",
        "shape": "self",
        "licence": "own output of the target",
        "terms_declared_by": "recipe",
        "warnings": [],
        "weight": 1.0,
        "rows": rows,
        "rejected": dict(rejected),
        "fit": kept,
        "wanted": kept,
        "chosen": kept,
    }


def _contamination(prompts_url: str) -> dict[str, int]:
    """Evaluation file -> prompts removed for it."""
    rejects = reject_counts(prompts_url, *pool_urls(prompts_url))
    return dict(sorted((file, n) for (reason, file), n in rejects.items() if reason == "evaluation"))


def _personal_data(prompts: Mapping[str, Any], respond: Mapping[str, Any] | None) -> dict[str, Any]:
    """Section on personal data: whether texts were searched, what was left out, and the share that is found."""
    on = "privacy.policy" in prompts
    answers_on = respond is not None and "privacy.policy" in respond
    not_scanned = [*_NOT_SCANNED] if on else ["prompts, system prompts and tools"]
    if respond is not None and not answers_on:
        not_scanned.append("the target's answers")
    if answers_on and prompts.get("privacy.answer_entities") is None:
        not_scanned.append("names, places and organisations in the target's answers")
    if on:
        not_scanned.append(f"names and places in languages other than {', '.join(COVERED)}")
    single = {
        name.rpartition(".")[2]: policy
        for name, policy in prompts.items()
        if name.startswith("privacy.policies.")
    }
    return {
        "filter": "on" if on else "off",
        "filter_of_answers": ("on" if answers_on else "off") if respond is not None else None,
        "policy": {"all others" if single else "all": prompts["privacy.policy"], **single} if on else {},
        "sought": prompts.get("privacy.sought", []),
        "sought_in_answers": respond.get("privacy.sought_in_answers", []) if respond is not None else [],
        "not_scanned": not_scanned,
        "expected_recall": {**_RECALL, "source": _RECALL_SOURCE} if on else {},
    }


def _known_categories(parts: Mapping[str, Any]) -> frozenset[str]:
    """Categories that stand in the recipe or in the shipped lists; others are free text of rows."""
    listed = [*(parts.get("prompts.sources") or ()), *(parts.get("prompts.traffic") or ())]
    openings = parts.get("prompts.openings")
    listed += (
        openings if isinstance(openings, list) else [opening.model_dump() for opening in DEFAULT_OPENINGS]
    )
    return frozenset({DEFAULT_CATEGORY, *(str(one["category"]) for one in listed if one.get("category"))})


def _shown(categories: Mapping[str, int], known: frozenset[str]) -> dict[str, int]:
    """Counts of the known categories, and of all others together: their names are texts of rows."""
    shown = {name: count for name, count in categories.items() if name in known}
    others = {name: count for name, count in categories.items() if name not in known}
    return shown | ({f"{len(others)} {_OF_ROWS}": sum(others.values())} if others else {})


def _numbered(categories: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Figures by category; numbers instead of names that are texts of rows."""
    names = [name if name in known else f"{_OF_ROWS}, {number}" for number, name in enumerate(categories, 1)]
    return dict(zip(names, categories.values(), strict=True))


def _public(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts without the recipe's patterns, which may spell what they look for, and credentials in URLs."""
    shown = dict(parts)
    if shown.get("privacy.patterns"):
        shown["privacy.patterns"] = [pattern["entity"] for pattern in shown["privacy.patterns"]]
    for name in ("prompts.sources", "prompts.traffic"):
        if shown.get(name):
            shown[name] = [{**source, "path": without_credentials(source["path"])} for source in shown[name]]
    return shown


def without_credentials(url: str) -> str:
    """A URL without user, password and query, which may hold a signature."""
    return re.sub(r"(?<=://)[^/@]*@|\?.*", "", url) if "://" in url else url


def _made_from(url: str) -> dict[str, Any]:
    """The parts of a stage's fingerprint: its options with seeds, the target's revision, checksums of inputs."""
    fingerprint = Fingerprint.load(url)
    parts = dict(fingerprint.parts) if fingerprint is not None else {}
    parts.pop("privacy.lists", None)  # a checksum of words listed as private: a short list could be guessed
    return parts


def _versions() -> dict[str, str]:
    return {"fledge": __version__, "python": platform.python_version()} | package_versions(_PACKAGES)


def _bin(count: int) -> str:
    for low, high in zip((0, *_EDGES), _EDGES, strict=False):
        if count < high:
            return f"{low} to {high - 1}"
    return f"{_EDGES[-1]} or more"


def _ordered(bins: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(bins.items(), key=lambda item: int(item[0].split()[0])))


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            flat |= _flat(inner, f"{prefix}{key}: ")
        elif inner is not None:
            flat[f"{prefix}{key}"] = inner
    return flat


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text.replace("|", "/").replace("\n", " ")
