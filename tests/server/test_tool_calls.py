"""Calls and reasoning in a text: found wherever its pieces are cut, and never at the cost of a character."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fledge.server.call_forms import CALL_FORMS
from fledge.server.reader import Reader, Thoughts
from tests.server.pieces import added_up

ARGUMENTS = '{"place": "a } \\" { b", "days": [1, {"x": null}]}'
LOOK = '{"name": "look", "arguments": ' + ARGUMENTS + "}"
WAIT = '{"name": "wait", "parameters": {}}'
# Of arguments that some formats write without quotes.
SCHEMA = {
    "type": "object",
    "properties": {
        "place": {"$ref": "#/$defs/place"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "days": {"type": "array"},
        "number": {"type": "number"},
        "sure": {"type": "boolean"},
    },
    "$defs": {"place": {"type": "string"}},
}
FUNCTIONS = {"look": SCHEMA, "wait": {}}


def read(
    form: str, pieces: list[str], *, inside: bool | None = None, several: bool = True
) -> tuple[str, str, list[tuple[str | None, str]]]:
    """Reasoning, content and calls, as a client adds them up."""
    thoughts = None if inside is None else Thoughts(inside=inside)
    return added_up(Reader(thoughts, CALL_FORMS[form].reader(FUNCTIONS, several=several)), pieces)


CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
CALLED = [
    ("hermes", f"<tool_call>\n{LOOK}\n</tool_call>", "", [("look", ARGUMENTS)]),
    ("hermes", f"I look. \n<tool_call>\n{LOOK}\n</tool_call>\n", "I look.", [("look", ARGUMENTS)]),
    (
        "hermes",
        f"<tool_call>\n{WAIT}\n</tool_call>\n<tool_call>\n{LOOK}\n</tool_call>",
        "",
        [("wait", "{}"), ("look", ARGUMENTS)],
    ),
    (
        "hermes",
        f"<tool_call>[{WAIT},\n{LOOK}]</tool_call>\n\nDone.\n",
        "\n\nDone.\n",
        [("wait", "{}"), ("look", ARGUMENTS)],
    ),
    ("hermes", '<tool_call>{"arguments": {"é": 1}, "name": "look"}</tool_call>', "", [("look", '{"é": 1}')]),
    ("hermes", f"{LOOK[:-1].join(['<tool_call>', chr(10)])}</tool_call>", "", [("look", ARGUMENTS)]),
    ("llama3_json", WAIT, "", [("wait", "{}")]),
    ("llama3_json", f"\n{WAIT}; {LOOK}", "", [("wait", "{}"), ("look", ARGUMENTS)]),
    (
        "llama3_json",
        '{"type": "function", "name": "wait", "parameters": {"s": 2}}',
        "",
        [("wait", '{"s": 2}')],
    ),
    ("mistral", f"[TOOL_CALLS] [{WAIT}, {LOOK}]", "", [("wait", "{}"), ("look", ARGUMENTS)]),
    ("mistral", f'Yes.[TOOL_CALLS][{LOOK[:-1]}, "id": "abc}}d"}}]', "Yes.", [("look", ARGUMENTS)]),
    ("mistral", f"Yes.\n[TOOL_CALLS]look[CALL_ID]a1b2c3d4e[ARGS]{ARGUMENTS}", "Yes.", [("look", ARGUMENTS)]),
    (
        "mistral",
        f"[TOOL_CALLS]wait[ARGS]{{}}[TOOL_CALLS] look[ARGS] {ARGUMENTS}\n",
        "",
        [("wait", "{}"), ("look", ARGUMENTS)],
    ),
    ("mistral", "[TOOL_CALLS]wait[ARGS]{}, I do.", ", I do.", [("wait", "{}")]),
    (
        "deepseek_v31",
        f"{CALLS}{BEGIN}wait{SEP}{{}}{END}{BEGIN}look{SEP}{ARGUMENTS}{END}{CALLS_END}",
        "",
        [("wait", "{}"), ("look", ARGUMENTS)],
    ),
    ("deepseek_v31", f"Yes.\n\n{CALLS}{BEGIN}wait{SEP}{{}}{END}{CALLS_END}", "Yes.", [("wait", "{}")]),
    (
        "deepseek_v3",
        f"{CALLS}{BEGIN}function{SEP}look\n```json\n{ARGUMENTS}\n```{END}\n"
        f"{BEGIN}function{SEP}wait\n```json\n{{}}\n```{END}{CALLS_END}",
        "",
        [("look", ARGUMENTS), ("wait", "{}")],
    ),
    (
        "pythonic",
        """ [look(place='a } " { \\'b', days=[1, {"x": None}, -2.5], sure=True), wait()]""",
        "",
        [
            ("look", '{"place": "a } \\" { \'b", "days": [1, {"x": null}, -2.5], "sure": true}'),
            ("wait", "{}"),
        ],
    ),
    (
        "pythonic",
        '<|python_start|>[look(place="a\nb", sure=false)]<|python_end|>',
        "",
        [("look", '{"place": "a\\nb", "sure": false}')],
    ),
    ("pythonic", "[wait()] and so on", " and so on", [("wait", "{}")]),
    (
        "qwen3_coder",
        '<tool_call>\n<function=look>\n<parameter=place>\n a\n"b"\t</p>\n\n</parameter>\n'
        "<parameter=days>\n[1, 2]\n</parameter>\n<parameter=sure>\nTrue\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=wait>\n</function>\n</tool_call>",
        "",
        [("look", r'{"place": " a\n\"b\"\t</p>\n", "days": [1, 2], "sure": true}'), ("wait", "{}")],
    ),
    (
        "qwen3_coder",
        "I look.\n\n<function=look>\n<parameter=number>12</parameter><parameter=note>12</parameter></function>",
        "I look.",
        [("look", '{"number": 12, "note": "12"}')],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=look><parameter=note>null</parameter><parameter=days>none</parameter>"
        "<parameter=other>{}</parameter></function></tool_call>Done.",
        "Done.",
        [("look", '{"note": null, "days": "none", "other": {}}')],
    ),
    (
        "glm45",
        "<tool_call>look\n<arg_key>place</arg_key>\n<arg_value>sea\n</arg_value>\n<arg_key>number</arg_key>\n"
        "<arg_value>-1.5</arg_value>\n</tool_call>\n<tool_call>wait\n</tool_call>",
        "",
        [("look", r'{"place": "sea\n", "number": -1.5}'), ("wait", "{}")],
    ),
]
NO_CALLS = [
    ("hermes", "  plain words, {} and [] \n "),
    ("hermes", "so <tool_call> is how it begins</tool_call>"),
    ("hermes", '<tool_call>\n{"name": "never_offered", "arguments": {}}\n</tool_call>\n'),
    ("hermes", '<tool_call>\n{"name": "look", "arguments": "Paris"}\n</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "look"}\n</tool_call>'),
    ("hermes", '<tool_call>\n{"name": ["look"], "arguments": {}}'),
    ("hermes", "<tool_call> [ "),
    ("llama3_json", '{"name": "never_offered", "parameters": {}}'),
    ("llama3_json", '{"temperature": 20} is what I found'),
    ("llama3_json", f"Here is one: {WAIT}"),
    ("llama3_json", '{"name": "look", "parameters": {"a": [}'[:-8]),
    ("llama3_json", "{" * 3000),
    ("mistral", "[TOOL_CALLS] none"),
    ("mistral", '[TOOL_CALLS] [{"a": 1}, 2]'),
    ("mistral", '[TOOL_CALLS]never_offered[ARGS]{"a": 1}'),
    ("mistral", "[TOOL_CALLS]look at {this}"),
    ("mistral", "[TOOL_CALLS]look[ARGS]none"),
    ("hermes", '<tool_call>look[ARGS]{"a": 1}</tool_call>'),
    ("deepseek_v31", f"{CALLS}{BEGIN}never_offered{SEP}{{}}{END}{CALLS_END}"),
    ("deepseek_v31", f"{CALLS}{BEGIN}look{{}}{END}"),
    ("pythonic", "[1, 2] is a list"),
    ("pythonic", "[never_offered(a=1)]"),
    ("pythonic", "[look(1)]"),
    ("pythonic", "[look(place=sea)]"),
    ("pythonic", "[look(place={1, 2})]"),
    ("pythonic", "[look(place='sea'"),
    ("pythonic", "Here: [wait()]"),
    ("pythonic", "[" * 300),
    ("qwen3_coder", "<tool_call>\n<function=never_offered>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>" * 3 + "<function=<function="),
    ("qwen3_coder", '<tool_call>{"name": "look", "arguments": {}}</tool_call>'),
    ("glm45", "<tool_call>never_offered\n</tool_call>"),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CALLED)
def test_calls_are_found(form: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert read(form, [text]) == ("", content, calls)
    assert all(json.loads(arguments) is not None for _, arguments in calls)
    assert read(form, [text], several=False) == ("", content, calls[:1])


@pytest.mark.parametrize(("form", "text"), NO_CALLS)
def test_what_only_looks_like_a_call_stays_content_to_the_letter(form: str, text: str) -> None:
    assert read(form, [text]) == ("", text, [])


# Of arguments that stand as JSON in the text: what comes before and after them.
AROUND = {
    "hermes": ('<tool_call>{"name": "look", "arguments": ', "}</tool_call>"),
    "llama3_json": ('{"name": "look", "parameters": ', "}"),
    "mistral": ('[TOOL_CALLS]{"name": "look", "arguments": ', "}"),
    "deepseek_v31": (f"{CALLS}{BEGIN}look{SEP}", f"{END}{CALLS_END}"),
    "deepseek_v3": (f"{CALLS}{BEGIN}function{SEP}look\n```json\n", f"\n```{END}{CALLS_END}"),
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        ('{"a": NaN}', None),
        ('{"a": [-Infinity]}', None),
        ('{"s": "a\nb\tc"}', '{"s": "a\\nb\\tc"}'),
        ('{\n  "s": "a"\n}', '{\n  "s": "a"\n}'),
        ("{'a': 1}", None),
        ('{"a": True}', None),
        ('{"a": 1,}', None),
        ('{"s": "He said "hi" and left"}', None),
    ],
)
def test_a_whole_answer_has_calls_with_json_alone(name: str, arguments: str, passed_on: str | None) -> None:
    text = arguments.join(AROUND[name])
    parts = Reader(None, CALL_FORMS[name].reader(FUNCTIONS)).read(text, ended=True)
    assert [call.arguments for call in parts.calls.values()] == ([passed_on] if passed_on else [])
    assert parts.content == ("" if passed_on else text)
    streamed = "".join(call for _, call in read(name, [*text, ""])[2])  # where nobody knows how it ends
    assert streamed == (passed_on or arguments)


@pytest.mark.parametrize(("ended", "calls"), [(True, 0), (False, 1)])
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "look", "arguments": {"s": "5" tall"}}\n</tool_call>'),
        ("qwen3_coder", "<tool_call>\n<function=look>\n<parameter=place>\nsea"),
        ("glm45", "<tool_call>look\n<arg_key>place</arg_key>\n<arg_value>sea</arg_value>"),
    ],
)
def test_a_call_without_an_end_is_one_only_if_the_answer_was_cut(
    form: str, text: str, ended: bool, calls: int
) -> None:
    parts = Reader(None, CALL_FORMS[form].reader(FUNCTIONS)).read(text, ended=ended)
    assert len(parts.calls) == calls


def test_half_a_surrogate_pair_in_arguments_stays_escaped() -> None:
    text = '<tool_call>{"arguments": {"s": "\\ud83d é"}, "name": "look"}</tool_call>'
    _, _, [(_, arguments)] = read("hermes", [text])
    assert json.loads(arguments) == {"s": "\ud83d é"}
    assert arguments.encode()


@pytest.mark.parametrize(("form", "text", "content", "calls"), CALLED)
def test_nothing_is_lost_of_an_answer_that_breaks_off(
    form: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    del content
    for end in range(len(text)):
        _, parts, found = read(form, [text[:end]])
        assert [name for name, _ in found] == [name for name, _ in calls[: len(found)]]
        for (_, arguments), (_, wanted) in zip(found, calls, strict=False):
            assert wanted.startswith(arguments)
        assert parts in text
        if not found:
            assert parts.rstrip() == text[:end].rstrip()


TEXTS = [(form, text) for form, text, *_ in [*CALLED, *NO_CALLS]]
SCRAPS = [
    "<function=look>", "<function=", "<parameter=place>", "<parameter=days>", "</parameter>", "</function>", "look",
    "<arg_key>place</arg_key>", "<arg_value>", "</arg_value>", "[look(", "place='", "')", "wait()", CALLS, CALLS_END,
    BEGIN, SEP, END, "```json", "```", "<|python_start|>",
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<think>", "</think>", "[", "]", "{", "}", ", ", "; ", "\n",
    " ", '"', "\\", "look[ARGS]", "[CALL_ID]", LOOK, WAIT, LOOK[:-1], '{"name": "look", "arguments": ', "words",
]  # fmt: skip


@given(
    st.sampled_from(TEXTS)
    | st.tuples(st.sampled_from([*CALL_FORMS]), st.lists(st.sampled_from(SCRAPS)).map("".join)),
    st.sampled_from([None, False, True]),
    st.lists(st.integers(0, 400), max_size=12),
)
@example(("hermes", "</tool_call>\nfoo \n"), None, [16, 17])
def test_pieces_add_up_to_the_whole_wherever_they_are_cut(
    given_text: tuple[str, str], inside: bool | None, cuts: list[int]
) -> None:
    form, text = given_text
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    whole = read(form, [text], inside=inside)
    assert read(form, pieces, inside=inside) == whole
    assert read(form, [*text, ""], inside=inside) == whole


@pytest.mark.parametrize(
    ("inside", "text", "reasoning", "content"),
    [
        (False, "<think>\nHm.\n</think>\n\nYes. ", "Hm.", "Yes. "),
        (False, "\n<think></think>Yes.", "", "Yes."),
        (False, " No thoughts, <think>none</think>", "", " No thoughts, <think>none</think>"),
        (False, "<thi", "", "<thi"),
        (False, "<think>Cut off </th", "Cut off </th", ""),
        (True, "\nHm. \n</think>\nYes.", "Hm.", "Yes."),
        (True, "<think>\nHm.</think>Yes.</think>", "Hm.", "Yes.</think>"),
        (True, "Hm. ", "Hm.", ""),
    ],
)
def test_reasoning_is_told_apart(inside: bool, text: str, reasoning: str, content: str) -> None:
    assert read("hermes", [text], inside=inside) == (reasoning, content, [])


def test_a_call_may_follow_reasoning_but_not_stand_in_it() -> None:
    text = f"<think>\nLike <tool_call>\n{WAIT}\n</tool_call>?\n</think>\n\n<tool_call>\n{LOOK}\n</tool_call>"
    reasoning, content, calls = read("hermes", [text], inside=False)
    assert (reasoning, content, calls) == (
        f"Like <tool_call>\n{WAIT}\n</tool_call>?",
        "",
        [("look", ARGUMENTS)],
    )


def test_a_call_is_told_of_before_its_arguments_are_complete() -> None:
    reader = Reader(None, CALL_FORMS["hermes"].reader(FUNCTIONS))
    assert not reader.add('<tool_call>\n{"name": "look", "argum', last=False)
    parts = reader.add('ents": {"place": "Par', last=False)
    assert (parts.calls[0].name, parts.calls[0].arguments) == ("look", '{"place": "Par')
    parts = reader.add('is"}}', last=False)
    assert (parts.calls[0].name, parts.calls[0].arguments) == (None, 'is"}')


def test_a_text_between_tags_is_streamed() -> None:
    reader = Reader(None, CALL_FORMS["qwen3_coder"].reader(FUNCTIONS))
    assert not reader.add("<tool_call>\n<function=lo", last=False)
    parts = reader.add("ok>\n<parameter=place>\nThe s", last=False)
    assert (parts.calls[0].name, parts.calls[0].arguments) == ("look", '{"place": "The s')
    assert reader.add("ea\n</para", last=False).calls[0].arguments == "ea"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"place": {"type": [{}, 3]}}},
        {"properties": {"place": {"anyOf": 5}}},
        {"properties": {"place": {"$ref": "#/properties/place"}}},
        {"properties": {"place": {"anyOf": [{"$ref": "#/properties/place"}]}}},
        {"properties": {"place": True}},
        {"properties": [1]},
        {"properties": {"place": {"enum": 3}}, "required": 1},
    ],
    ids=str,
)
def test_a_schema_that_says_nothing_allows_anything(schema: dict[str, Any]) -> None:
    text = "<tool_call><function=look><parameter=place>[1]</parameter></function></tool_call>"
    _, _, calls = added_up(Reader(None, CALL_FORMS["qwen3_coder"].reader({"look": schema})), [text])
    assert calls == [("look", '{"place": [1]}')]
