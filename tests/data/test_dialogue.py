"""One prompt never ends the stage; tools are offered as served, and logged results follow the target's own calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fledge.data import RespondOptions
from fledge.data.contract import _answer
from fledge.data.conversations import Answered
from fledge.data.dialogue import DialogueJobs
from fledge.data.prompt_store import TrainingPrompt
from fledge.data.reasoning import as_sent_back
from fledge.data.tool_use import calls_in
from fledge.data.turns import decode_all
from fledge.target import Target
from tests.data.templates import FIXTURES
from tests.data.test_contract import with_template
from tests.tiny import TinyShape, save_tiny_target

Q = "When is high tide?"
TOOLS = json.dumps([{"type": "function", "function": {"name": "look_up", "parameters": {}}}])
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"what": "tides"}}\n</tool_call>'
OFFERS = "{% for t in tools or [] %}{{ t.function.name + '\\n' }}{% endfor %}"


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A target whose template shows tools, calls and results."""
    template = OFFERS + next(f.template for f in FIXTURES if f.name == "chatml-tools")
    folder = tmp_path_factory.mktemp("calling") / "target"
    return Target.load(str(save_tiny_target(folder, shape=TinyShape(layers=1), chat_template=template)))


def prompt(turns: list[str], **fields: Any) -> TrainingPrompt:
    return TrainingPrompt("p", "log", "general", turns, 0, "own", **fields)


def converse(
    target: Target, asked: TrainingPrompt, answers: list[str], **options: Any
) -> tuple[Answered, list[str]]:
    """The outcome, and each text that the target continued."""
    chosen = RespondOptions(temperatures={0.0: 1.0}, **options)
    job = DialogueJobs(target, chosen, vocabulary=target.config.vocab_size).job(asked)
    read: list[str] = []
    try:
        request = next(job)
        for answer in answers:
            read.append(decode_all(target, request.prompt_ids))
            request = job.send(_answer(target, answer, request.prompt_ids))
    except StopIteration as stop:
        return stop.value, read
    raise AssertionError("the conversation goes on")


def test_a_logged_result_follows_the_targets_own_call(calling: Target) -> None:
    asked = prompt([Q, "And low tide?"], tools=TOOLS, results='[[["look_up", "06:12"]], []]')
    answered, read = converse(calling, asked, [CALL, "At 6:12.", "At noon."])
    assert answered.reason is None
    assert all(text.startswith("look_up") for text in read)
    assert "<tool_response>06:12" in read[1]
    assert "And low tide?" in read[2]
    trained = [
        decode_all(calling, [t for t, own in zip(c.token_ids, c.loss_mask, strict=True) if own])
        for c in answered.conversations
    ]
    assert "".join(trained).count("06:12") == 0
    assert "At 6:12." in "".join(trained)


@pytest.mark.parametrize(
    "answers", [["I don't know."], [CALL.replace("tides", "x").replace("look_up", "other")], [CALL, CALL]]
)
def test_without_the_logged_call_a_conversation_ends_and_is_counted(
    calling: Target, answers: list[str]
) -> None:
    asked = prompt([Q, "And low tide?"], tools=TOOLS, results='[[["look_up", "06:12"]], []]')
    answered, _ = converse(calling, asked, answers)
    assert answered.reason == "other_call"
    assert answered.conversations


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Let me see.\n{CALL}", ("Let me see.", [("look_up", {"what": "tides"})])),
        ('{"name": "look_up", "parameters": {}}', ("", [("look_up", {})])),
        ('[TOOL_CALLS] [{"name": "look_up", "arguments": {}}, {"name": "add", "arguments": {"a": 1}}]',
         ("", [("look_up", {}), ("add", {"a": 1})])),
        ('[TOOL_CALLS]look_up[ARGS]{"a": {"b": 1}}', ("", [("look_up", {"a": {"b": 1}})])),
        ('<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}', ("", [("add", {"a": 1})])),
        ('Such as {"name": "unknown", "arguments": {}} or {"name": "look_up"', None),
        ('{"name": "look_up", "arguments": "text"}', None),
    ],
)  # fmt: skip
def test_calls_of_each_format_are_found(text: str, found: Any) -> None:
    assert calls_in(text, {"look_up", "add"}) == (found or (text, []))


def test_options_of_a_request_reach_the_template(target: Target) -> None:
    fixture = next(f for f in FIXTURES if f.name == "chatml")
    thinking = with_template(target, fixture)
    thinking.tokenizer.chat_template = fixture.template + "{% if think %}<think>{% endif %}"
    _, read = converse(thinking, prompt([Q], template_options='{"think": true}'), ["So."])
    assert read[0].endswith("<think>")


def test_a_token_beyond_the_models_vocabulary_rejects_its_prompt_alone(tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path / "added", shape=TinyShape(layers=1))
    added = Target.load(str(folder))
    added.tokenizer.add_tokens(["[PAD]"], special_tokens=True)
    assert converse(added, prompt(["What does [PAD] mean?"]), [])[0] == Answered("p", (), "foreign_token")
    assert converse(added, prompt(["What does it mean?"]), ["This."])[0].reason is None


def refusing(target: Target, condition: str) -> Target:
    fixture = next(f for f in FIXTURES if f.name == "chatml")
    refuses = with_template(target, fixture)
    refuses.tokenizer.chat_template = (
        f"{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}" + fixture.template
    )
    return refuses


@pytest.mark.parametrize(
    ("condition", "answered"),
    [("messages[0].role == 'user'", 0), ("messages | length > 2", 1)],
)
def test_what_a_template_refuses_is_a_counted_reason(target: Target, condition: str, answered: int) -> None:
    outcome, read = converse(refusing(target, condition), prompt([Q, "And then?"]), ["So."] * answered)
    assert outcome.reason == "refused_by_template"
    assert len(outcome.conversations) == len(read) == answered


def test_channels_are_sent_back_as_serving_does() -> None:
    text = "<|channel|>analysis<|message|>A sum.<|end|><|start|>assistant<|channel|>final<|message|>Four."
    assert as_sent_back(text) == {"role": "assistant", "content": "Four.", "thinking": "A sum."}
    assert as_sent_back("<think>A sum.</think>\n\nFour.") == {"role": "assistant", "content": "Four."}


def test_a_later_turn_that_is_too_long_is_counted(target: Target) -> None:
    outcome, _ = converse(target, prompt([Q, "And why? " * 50]), ["So."], max_prompt_tokens=60)
    assert outcome.reason == "later_turn_too_long"
    assert len(outcome.conversations) == 1
