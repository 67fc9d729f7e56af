"""How a conversation goes on, for templates of several shapes, one of which rewrites history."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.data.turns import continuation, next_turn_ids, next_user_start
from fledge.target import Target
from tests.tiny import CHATML, LLAMA3, TinyShape, save_tiny_target

# Says how many turns there are at the very start: nothing that was generated earlier can be kept.
REWRITES = "{{ messages | length }}" + CHATML
TRIMS = CHATML.replace("message['content'] ", "(message['content'] | trim) ")
USER = [{"role": "user", "content": "Why is the sky blue?"}]


def load(folder: Path, template: str) -> Target:
    return Target.load(str(save_tiny_target(folder, shape=TinyShape(layers=1), chat_template=template)))


@pytest.mark.parametrize("template", [CHATML, LLAMA3])
def test_a_second_turn_renders_as_the_template_would(tmp_path: Path, template: str) -> None:
    target = load(tmp_path, template)
    if template == LLAMA3:
        target.chat.turn_end_ids.add(target.tokenizer.convert_tokens_to_ids("<|eot_id|>"))
    first = target.chat.prompt_ids(USER)
    answer = target.tokenizer.encode("It scatters.", add_special_tokens=False)
    end = target.tokenizer.convert_tokens_to_ids("<|eot_id|>" if template == LLAMA3 else "<|im_end|>")
    between = next_turn_ids(target, USER, "And red?")
    start = next_user_start(target, USER)
    assert between is not None
    assert start is not None
    assert between[: len(start)] == start
    assert target.tokenizer.decode(start).endswith(
        "user\n" if template == CHATML else "<|end_header_id|>\n\n"
    )
    assert target.tokenizer.decode(between[len(start) :]).startswith("And red?")
    ids = [*first, *answer, end, *between]
    history = [
        *USER,
        {"role": "assistant", "content": "It scatters."},
        {"role": "user", "content": "And red?"},
    ]
    assert ids == target.chat.prompt_ids(history)
    assert continuation(target, [*first, *answer, end], target.chat.prompt_ids(history)) == between


def test_a_template_that_rewrites_history_has_no_second_turn(tmp_path: Path) -> None:
    target = load(tmp_path, REWRITES)
    assert next_turn_ids(target, USER, "And red?") is None
    assert next_user_start(target, USER) is None


def test_an_answer_that_a_template_would_trim_is_noticed(tmp_path: Path) -> None:
    target = load(tmp_path, TRIMS)
    between = next_turn_ids(target, USER, "And red?")
    assert between is not None
    end = target.tokenizer.convert_tokens_to_ids("<|im_end|>")
    for text, kept in (("It scatters.", True), ("It scatters. \n", False)):
        answer = target.tokenizer.encode(text, add_special_tokens=False)
        before = [*target.chat.prompt_ids(USER), *answer, end]
        history = [*USER, {"role": "assistant", "content": text}, {"role": "user", "content": "And red?"}]
        after = continuation(target, before, target.chat.prompt_ids(history))
        assert after == (between if kept else None)
