"""Templates of twenty shapes: training ids and masks proved against text written by hand, and against serving."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from fledge.base.errors import TargetError
from fledge.commands.template import render
from fledge.data.contract import Shape, check_shape, check_template, check_tools, notes
from fledge.target import ChatTemplate, Target
from tests.commands.command import Fledge
from tests.data.templates import A1, A2, FIXTURES, SYSTEM, U1, U2, Fixture
from tests.tiny import CHATML, TinyShape, make_tokenizer, save_tiny_target

TWO_TURNS = Shape("two turns", (U1, U2), (A1, A2))


def with_template(target: Target, fixture: Fixture) -> Target:
    """The target with another template and its special tokens."""
    tokenizer = make_tokenizer(fixture.template)
    added = [fixture.bos, fixture.eos, "</s>", *fixture.specials]
    tokenizer.add_special_tokens(
        {"additional_special_tokens": sorted({*added}), "bos_token": fixture.bos, "eos_token": fixture.eos}
    )
    other = copy.copy(target)
    other.tokenizer, other.chat = tokenizer, ChatTemplate(tokenizer)
    return other


def test_there_are_twenty_different_fixtures() -> None:
    assert len({fixture.name for fixture in FIXTURES}) == len(
        {fixture.template + fixture.eos for fixture in FIXTURES}
    )
    assert len(FIXTURES) == 20


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_ids_and_mask_are_those_written_by_hand(target: Target, fixture: Fixture) -> None:
    templated = with_template(target, fixture)
    checked = check_shape(templated, TWO_TURNS)
    assert checked.status == ("same" if len(fixture.samples) == 1 else "split"), checked.detail
    assert len(checked.samples) == len(fixture.samples)
    for sample, written in zip(checked.samples, fixture.samples, strict=True):
        parts = re.split("[«»]", written)
        ids: list[int] = []
        mask: list[bool] = []
        for number, part in enumerate(parts):
            encoded = templated.tokenizer.encode(part, add_special_tokens=False)
            ids += encoded
            mask += [number % 2 == 1] * len(encoded)
        assert sample.token_ids == ids
        assert sample.loss_mask == mask
        assert render(templated, sample, show_ids=False, colour=False).plain == written


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_every_turn_shape_agrees_with_serving(target: Target, fixture: Fixture) -> None:
    templated = with_template(target, fixture)
    found = {checked.name: checked for checked in check_template(templated)}
    assert {name: c.detail for name, c in found.items() if c.status == "different"} == {}
    assert found["system prompt"].status == fixture.system
    assert len(found["thinking"].samples) == fixture.thinking
    assert check_tools(templated).status == fixture.tools
    with_system = check_shape(templated, Shape("s", (U1,), (A1,), SYSTEM))
    assert with_system.status == fixture.system


def test_thinking_stays_in_the_ids_and_is_counted(target: Target) -> None:
    fixture = next(f for f in FIXTURES if f.name == "chatml-strips-thinking")
    templated = with_template(target, fixture)
    thought = "<think>\nHm, let me see.\n</think>\n\n"
    [first, second] = check_shape(templated, Shape("t", (U1, U2), (thought + A1, A2))).samples
    decode = templated.tokenizer.decode
    assert thought + A1 in decode(first.token_ids)
    assert decode(first.token_ids[first.turn_starts[1] :][: first.reasoning_tokens]).endswith("</think>")
    assert "Hm" not in decode(second.token_ids)
    assert second.reasoning_tokens == 0
    opens = with_template(target, next(f for f in FIXTURES if f.name == "opens-thinking"))
    [sample] = check_shape(opens, Shape("t", (U1,), ("Hm.</think>" + A1,))).samples
    assert (
        opens.tokenizer.decode(sample.token_ids[sample.turn_starts[1] :][: sample.reasoning_tokens])
        == "Hm.</think>"
    )
    [cut] = check_shape(opens, Shape("t", (U1,), ("Hm, and so on",))).samples
    assert cut.reasoning_tokens == sum(cut.loss_mask)


SPACED = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def test_ids_that_serving_would_merge_differently_are_found(target: Target) -> None:
    """The answer follows a space that belongs to its first word's token once the turn is history."""
    spaced = with_template(target, Fixture("spaced", SPACED, (" It",), "<|im_end|>", ()))
    [checked] = [c for c in check_template(spaced) if c.name == "three turns"]
    assert checked.status == "different"
    assert "turn 2: training and serving differ from token" in checked.detail


def test_the_date_in_a_template_is_noted(target: Target) -> None:
    dated = with_template(
        target, Fixture("dated", "{{ strftime_now('%d %b') }}" + CHATML, (), "<|im_end|>", ())
    )
    assert "today's date" in notes(dated)[0]


def test_the_command_shows_every_shape_and_fails_when_serving_differs(fledge: Fledge, tmp_path: Path) -> None:
    shape = TinyShape(layers=1)
    good = save_tiny_target(tmp_path / "good", shape=shape)
    output = fledge("template", good, "--ids")
    assert "three turns with system prompt: training and serving ids are the same" in output
    assert re.search(r"«I\w*\[\d+\]", output)
    changing = "{{ strftime_now('%f') }}" + CHATML  # another text at every rendering
    bad = save_tiny_target(tmp_path / "bad", shape=shape, chat_template=changing)
    assert "DIFFERENT (turn 1" in fledge("template", bad, expect=1)
    none = save_tiny_target(tmp_path / "none", shape=shape, chat_template=None)
    assert "no chat template" in fledge.error("template", none)


def test_a_target_without_template_can_t_be_checked(target: Target) -> None:
    bare = copy.copy(target)
    bare.tokenizer = make_tokenizer(None)
    bare.chat = ChatTemplate(bare.tokenizer)
    with pytest.raises(TargetError, match="no chat template"):
        check_template(bare)
