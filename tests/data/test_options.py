"""Options refuse what they don't know or can't mean, and say how much context a stage needs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fledge.data import Opening, PrivacyOptions, PromptOptions, RespondOptions, SourceOptions
from fledge.data.openings import DEFAULT_OPENINGS, PLACEHOLDERS


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (PromptOptions, {"cuont": 3}),
        (PromptOptions, {"count": 0}),
        (PromptOptions, {"temperature": 0}),
        (PromptOptions, {"mix": {"chat": 0}}),
        (PromptOptions, {"mix": {"chat": -1, "code": 2}}),
        (PromptOptions, {"openings": []}),
        (PromptOptions, {"traffic": [{"kind": "self", "licence": "own"}]}),
        (PromptOptions, {"traffic": [{"path": "a.jsonl", "weight": 2}]}),
        (RespondOptions, {"max_tokens": 3}),
        (RespondOptions, {"temperatures": {}}),
        (RespondOptions, {"temperatures": {0.0: 0.0}}),
        (RespondOptions, {"temperatures": {-1.0: 1.0}}),
        (RespondOptions, {"heldout": 1.5}),
    ],
)
def test_a_wrong_option_is_refused(
    model: type[PromptOptions] | type[RespondOptions], values: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        model(**values)


def test_options_survive_json() -> None:
    prompts = PromptOptions(mix={"x": 2}, openings=(Opening(category="x", text="Why", until="?"),))
    respond = RespondOptions(temperatures={0: 1, 0.5: 2})
    assert PromptOptions.model_validate_json(prompts.model_dump_json()) == prompts
    assert RespondOptions.model_validate_json(respond.model_dump_json()) == respond


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ({"path": "gs://ours/logs/2026-*.jsonl"}, "ours-logs-2026--.jsonl"),
        ({"path": "данные/чаты.jsonl"}, "данные-чаты.jsonl"),
        ({"path": "a.jsonl", "name": "our chats"}, "our-chats"),
        ({"path": "a.jsonl", "name": ".."}, "file"),  # a folder of that name is another one
        ({"kind": "self"}, "self"),
    ],
)
def test_a_sources_name_is_one_folders(given: dict[str, str], label: str) -> None:
    assert SourceOptions.model_validate(given).label == label


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": [{"kind": "self", "limit": 5}]}, "kind self has no limit"),
        ({"sources": [{"path": "a.jsonl", "split": "test"}]}, "kind file has no split"),
        ({"traffic": [{"path": "a.jsonl"}]}, "name `sources`"),
    ],
)
def test_what_would_have_no_effect_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PromptOptions.model_validate(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deny": [{"entity": "ORGANIZATION", "words": ["Acme"]}]}, "ORGANIZATION would not be looked for"),
        ({"policies": {"ORGANIZATION": "drop"}}, "ORGANIZATION would not be looked for"),
        (
            {"entities": ["PERSON"], "patterns": [{"entity": "BADGE", "regex": "B-\\d+"}]},
            "BADGE would not be looked for",
        ),
        ({"patterns": [{"entity": "BADGE", "regex": "B-\\d+", "score": 0.4}]}, "would never count"),
    ],
)
def test_what_the_privacy_filter_would_not_look_for_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PrivacyOptions.model_validate(options)


def test_the_context_asked_for_holds_the_longest_request() -> None:
    longest = max(
        len(opening.text)
        + sum(max(map(len, words)) for name, words in PLACEHOLDERS.items() if name in opening.text)
        for opening in DEFAULT_OPENINGS
    )
    assert longest < 2 * 128  # in characters; a token of such plain text has more than two
    assert PromptOptions(max_tokens=100).longest_request == 100 + 128 + 256
    options = PromptOptions(max_tokens=100, openings=(Opening(category="x", text="é" * 200),))
    assert options.longest_request == 100 + 400 + 256
    respond = RespondOptions(max_prompt_tokens=100, max_new_tokens=50, user_max_tokens=80)
    assert respond.longest_request == 150
    assert respond.model_copy(update={"second_turn": 0.1}).longest_request == 180
