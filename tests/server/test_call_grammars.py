"""Calls that are required: each format's grammar allows what its reader reads, and nothing beyond the schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fledge.base.errors import EngineError
from fledge.engine.structured import Grammars
from fledge.server.call_forms import CALL_FORMS, grammar
from fledge.server.form_grammar import after_thinking, lark_of
from fledge.server.reader import Reader
from fledge.target import Target
from tests.server.pieces import added_up
from tests.server.test_tool_calls import BEGIN, CALLS, CALLS_END, END, SEP

LOOK = {
    "type": "object",
    "properties": {
        "place": {"$ref": "#/$defs/place"},
        "note": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["place"],
    "additionalProperties": False,
    "$defs": {"place": {"enum": ["sea", "wood"]}},
    "x-guidance": {"whitespace_flexible": False},
}
FUNCTIONS = {"look": LOOK, "wait": {"type": "object", "properties": {}, "additionalProperties": False}}
SEA = {"place": "sea", "note": "a/b", "days": [1, 2]}
CALLED = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"place":"sea","note":"a/b","days":[1,2]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>',
    "llama3_json": '{"name": "look", "parameters": {"place":"sea","note":"a/b","days":[1,2]}}; '
    '{"name": "wait", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "look", "arguments": {"place":"sea","note":"a/b","days":[1,2]}}, '
    '{"name": "wait", "arguments": {}}]',
    "pythonic": '[look(place="sea", note="a/b", days=[1,2]), wait()]',
    "deepseek_v3": f"{CALLS}{BEGIN}function{SEP}look\n```json\n" + '{"place":"sea","note":"a/b","days":[1,2]}'
    f"\n```{END}\n{BEGIN}function{SEP}wait\n```json\n{{}}\n```{END}{CALLS_END}",
    "deepseek_v31": f"{CALLS}{BEGIN}look{SEP}" + '{"place":"sea","note":"a/b","days":[1,2]}'
    f"{END}{BEGIN}wait{SEP}{{}}{END}{CALLS_END}",
    "qwen3_coder": "<tool_call>\n<function=look>\n<parameter=place>\nsea\n</parameter>\n<parameter=note>\na/b\n"
    "</parameter>\n<parameter=days>\n[1,2]\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=wait>\n</function>\n</tool_call>",
    "glm45": "<tool_call>look\n<arg_key>place</arg_key>\n<arg_value>sea</arg_value>\n<arg_key>note</arg_key>\n"
    "<arg_value>a/b</arg_value>\n<arg_key>days</arg_key>\n<arg_value>[1,2]</arg_value>\n</tool_call>\n"
    "<tool_call>wait\n</tool_call>",
}


@pytest.fixture(scope="module")
def allows(target: Target) -> Any:
    grammars = Grammars(target.tokenizer, target.config.vocab_size, [target.tokenizer.eos_token_id])

    def allows(lark: str, text: str) -> bool:
        return grammars.follower({"grammar": lark}).completed_by(target.tokenizer.encode(text))

    return allows


@pytest.mark.parametrize("name", CALL_FORMS)
def test_what_a_grammar_allows_is_read_as_calls(allows: Any, name: str) -> None:
    form = CALL_FORMS[name]
    lark = grammar(form, FUNCTIONS, several=True, marks={})
    text = CALLED[name]
    assert allows(lark, text)
    _, content, calls = added_up(Reader(None, form.reader(FUNCTIONS)), [text])
    assert (content, [(called, json.loads(arguments)) for called, arguments in calls]) == (
        "",
        [("look", SEA), ("wait", {})],
    )
    for wrong in (
        text.replace("sea", "moon"),
        text.replace("look", "never"),
        text.replace("[1,2]", '["a"]'),
        "No.",
    ):
        assert not allows(lark, wrong)
    assert not allows(grammar(form, FUNCTIONS, several=False, marks={}), text)
    assert allows(grammar(form, FUNCTIONS, several=True, marks={}, answer={"enum": ["tea"]}), '"tea"')


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ({"json": {"enum": ["tea"]}}, '"tea"', '"cup"'),
        ({"json": '{"type": "object"}'}, '{"a": 1}', "[]"),
        ({"json_object": True}, "{}", "1"),
        ({"choice": ["yes", "n/o"]}, "n/o", "nay"),
        ({"regex": "a/[0-9]{2}\n?"}, "a/12", "a/1"),
        ({"regex": r"a\/b\\/[0-9]"}, r"a/b\/1", "a/b/1"),
    ],
)
def test_a_form_comes_after_the_thinking(allows: Any, form: dict[str, Any], right: str, wrong: str) -> None:
    begun = after_thinking(lark_of(form), {}, begun=True)
    possible = after_thinking(lark_of(form), {}, begun=False)
    for answer, allowed in ((right, True), (wrong, False)):
        thoughts = f"Hm, a <b> or {{.\n</think>\n\n{answer}"
        assert allows(begun, thoughts) is allowed
        assert allows(possible, f"<think>\n{thoughts}") is allowed
        assert allows(possible, answer) is allowed
    assert not allows(begun, right)
    assert not allows(begun, f"Hm.</think>{right}</think>{right}")


def test_a_pattern_that_is_none_is_refused(allows: Any) -> None:
    with pytest.raises(EngineError):
        allows(after_thinking(lark_of({"regex": "["}), {}, begun=True), "a")
