"""Answers of a wanted form: they have it, they are plain decode's, and neighbours without one don't notice."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.base.errors import EngineError
from fledge.draft import DraftVocabulary
from fledge.engine import Completion, Engine, TreeShape, structured
from fledge.engine.structured import Grammars, GrammarsFullError, unpacked
from fledge.heads import Head
from fledge.target import Target
from tests.tiny import VOCAB_SIZE

ON_BOTH_BACKENDS = True

pytest.importorskip("llguidance", reason="llguidance isn't installed: pip install 'fledge[structured]'")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["tea", "coffee", "water"]},
        "hot": {"type": "boolean"},
        "cups": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "hot", "cups"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # a random target would write spaces for ever
}
FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": SCHEMA},
    "regex": {"regex": "[a-c]{3,5}-[0-9]{2}"},
    "choice": {"choice": ["yes", 'a "no"', "über"]},
    "grammar": {"grammar": 'start: "(" INNER ")"\nINNER: /[xy]{1,6}/'},
}
AS_TEXT = {"json": json.dumps(SCHEMA)}
PROMPTS = [[20, 30, 40, 50], list(range(100, 190)), [7] * 33]


def has_form(name: str, answer: Completion) -> bool:
    text = answer.text
    if name == "json":
        parsed = json.loads(text)
        return bool(set(parsed) == {"name", "hot", "cups"} and 0 <= parsed["cups"] <= 99)
    if name == "choice":
        return text in FORMS["choice"]["choice"]
    pattern = FORMS["regex"]["regex"] if name == "regex" else r"\([xy]{1,6}\)"
    return re.fullmatch(pattern, text) is not None


@pytest.fixture(scope="module", params=["native", "torch"])
def target(request: pytest.FixtureRequest, tiny_target_folder: Path) -> Target:
    if request.param == "torch":
        return Target.load(str(tiny_target_folder), backend="torch", dtype="float32")
    return Target.load(str(tiny_target_folder), backend="native")


@pytest.fixture(scope="module")
def head(target: Target) -> Head:
    return Head.from_target(target, DraftVocabulary.from_counts(torch.ones(VOCAB_SIZE), 256))


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        pytest.param(name, temperature, marks=pytest.mark.slow if (number + temperature) % 2 else ())
        for number, name in enumerate(FORMS)
        for temperature in (0.0, 1.0)
    ],
)
def test_answers_have_their_form_and_are_plain_decode_s(
    target: Target, head: Head, name: str, temperature: float
) -> None:
    options: dict[str, Any] = {"max_tokens": 90, "temperature": temperature, "seed": 5}
    options["structured_outputs"] = FORMS[name]
    plain = Engine(target).generate(PROMPTS, **options)
    assert all(answer.finish_reason == "stop" and has_form(name, answer) for answer in plain)
    for tree in (None, TreeShape(4, 3, 16)):
        engine = Engine(target, head, tree=tree)
        for speculate in (True, False):
            answers = engine.generate(PROMPTS, **options, speculate=speculate)
            assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]


def test_a_schema_may_be_given_as_text(target: Target) -> None:
    options: dict[str, Any] = {"max_tokens": 90, "temperature": 1.0, "seed": 5}
    plain = Engine(target)
    expected, found = (
        plain.generate(PROMPTS, structured_outputs=form, **options) for form in (FORMS["json"], AS_TEXT)
    )
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in expected]


@pytest.fixture(scope="module")
def neighbours(target: Target) -> list[tuple[list[int], dict[str, Any], list[int]]]:
    """Prompts, options, and what plain decode answers to each alone."""
    wanted: list[dict[str, Any]] = [
        {"structured_outputs": form, "temperature": temperature}
        for form in (FORMS["json"], AS_TEXT, *list(FORMS.values())[1:], {"regex": "[a-d]{60,70}"}, None)
        for temperature in (0.0, 0.8)
    ]
    wanted[0]["presence_penalty"] = 0.5
    wanted[3]["logprobs"] = 2
    for options in wanted:
        options |= {"max_tokens": 80, "seed": 11}
    # From 220 on the target is always sure by a hundredth: float32 in torch isn't bound to rows that are alone.
    prompts = [[220 + number, 5, 6, 7] for number in range(len(wanted))]
    plain = Engine(target, prefix_cache=False)
    return [
        (prompt, options, plain.generate([prompt], **options)[0].token_ids)
        for prompt, options in zip(prompts, wanted, strict=True)
    ]


@pytest.mark.usefixtures("late_flights")
@pytest.mark.parametrize("overlap", [False, True])
def test_neighbours_with_and_without_a_form_answer_as_if_they_were_alone(
    target: Target, head: Head, neighbours: list[tuple[list[int], dict[str, Any], list[int]]], overlap: bool
) -> None:
    """Also with a KV pool so small that they preempt each other."""
    count = len(neighbours)
    engine = Engine(target, head, max_batch=count, max_context=100, kv_tokens=200, overlap=overlap)
    streams = [engine.stream_sync(prompt, **options) for prompt, options, _ in neighbours]
    done: dict[int, Completion] = {}
    while len(done) < len(streams):
        for number, stream in enumerate(streams):
            if number not in done and (piece := next(stream)).completion is not None:
                done[number] = piece.completion
    assert [done[number].token_ids for number in range(count)] == [alone for _, _, alone in neighbours]
    assert overlap or sum(answer.stats.preemptions for answer in done.values()) > 0
    engine.check()


def test_each_node_is_masked_by_its_own_path(target: Target) -> None:
    tokenizer = target.tokenizer
    grammars = Grammars(tokenizer, VOCAB_SIZE, [3])
    follower = grammars.follower({"regex": "a(b|cd)"})
    a, b, c, d = (tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abcd")
    follower.take([a])
    #  0 ─┬─ 1: b
    #     ├─ 2: c ─── 4: d
    #     └─ 3: d (not allowed)
    tokens, parents = [a, b, c, d, d], [-1, 0, 0, 0, 2]
    allowed = unpacked(follower.allowed(tokens, parents, [0, 1, 2, 3, 4]), VOCAB_SIZE)
    starts = [b, c, *([] if (cd := tokenizer.get_vocab().get("cd")) is None else [cd])]
    rows = [row.nonzero()[:, 0].tolist() for row in allowed]
    assert rows[0] == sorted(starts)
    assert rows[1] == rows[4] == [3]
    assert rows[2] == [d]
    assert len(rows[3]) == VOCAB_SIZE
    again = unpacked(follower.allowed(tokens, parents, [4, 0]), VOCAB_SIZE)
    assert torch.equal(again, allowed[[4, 0]])  # it is where it was


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("json", "structured_outputs is 'json'"),
        ({}, "nothing"),
        ({"xml": "a"}, "xml"),
        ({"json": {}, "regex": "a"}, "json, regex"),
        ({"json_object": False}, "use True"),
        ({"choice": []}, "list of texts"),
        ({"choice": "yes"}, "list of texts"),
        ({"regex": "(("}, r"structured_outputs\.regex can't be used"),
        ({"json": {"type": "strong"}}, r"structured_outputs\.json can't be used"),
        ({"json": "{"}, r"structured_outputs\.json can't be used"),
        ({"json": {"enum": {"tea", "coffee"}}}, r"structured_outputs\.json can't be written as JSON"),
        ({"grammar": "start: x"}, r"structured_outputs\.grammar can't be used"),
    ],
)
def test_what_is_no_form_is_refused_at_once(target: Target, given: Any, part: str) -> None:
    with pytest.raises(EngineError, match=part):
        Engine(target).generate([[5]], structured_outputs=given)


WIDE = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(600)}}
# After its first tokens, the same object: no first mask shows that it is beyond the limits.
LATER = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^[a-c]{40}$"}, "b": WIDE},
    "required": ["a", "b"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


@pytest.mark.parametrize(
    "form",
    [
        {"json": WIDE},
        {"json": json.dumps({"anyOf": [WIDE, {**WIDE, "required": ["p3"]}]})},
        {"grammar": "start: " + " | ".join(f'"word {n} x"' for n in range(5000))},
    ],
    ids=["properties", "as text", "alternatives"],
)
def test_a_grammar_beyond_the_limits_is_refused_when_it_is_compiled(
    target: Target, form: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EngineError, match="can't be used") as caught:
        Engine(target).generate([[5]], structured_outputs=form)
    assert "p599" not in str(caught.value)  # it doesn't repeat the grammar
    assert "word 7" not in str(caught.value) + caplog.text


def test_an_answer_that_meets_the_limits_later_ends_with_an_error(target: Target, head: Head) -> None:
    plain = Engine(target).generate([[5, 6]], structured_outputs={"json": LATER}, max_tokens=60)[0]
    assert re.match('{"a":"[a-c]{40}"', plain.text)
    assert plain.finish_reason == "error"
    speculative = Engine(target, head, tree=TreeShape(3, 3, 8))
    drafted = speculative.generate([[5, 6]], structured_outputs={"json": LATER}, max_tokens=60)[0]
    assert (drafted.text, drafted.finish_reason) == (plain.text, "error")
    cut = Engine(target).generate([[5, 6]], structured_outputs={"json": LATER}, max_tokens=5)[0]
    assert cut.finish_reason == "length"


def test_a_draft_that_meets_the_limits_costs_the_answer_nothing(target: Target) -> None:
    """Only what is accepted counts: plain decode would never have looked there."""
    grammars = Grammars(target.tokenizer, VOCAB_SIZE, [3])
    form = {"type": "object", "properties": {"c": WIDE, "d": {"type": "null"}}, "required": []}
    follower = grammars.follower({"json": {**form, "x-guidance": LATER["x-guidance"]}})
    begin, wide, narrow = (
        target.tokenizer.encode(text, add_special_tokens=False) for text in ('{"', 'c":{', 'd":')
    )
    follower.take(begin)
    tokens = [begin[-1], *wide, *narrow]
    parents = [-1, 0, *range(1, len(wide)), 0, *range(len(wide) + 1, len(wide) + len(narrow))]
    before = follower.allowed(tokens[:1], parents[:1], [0])
    allowed = unpacked(follower.allowed(tokens, parents, list(range(len(tokens)))), VOCAB_SIZE)
    assert allowed[wide.index(target.tokenizer.encode(":", add_special_tokens=False)[0]) + 1].sum() == 1
    null = target.tokenizer.encode("null", add_special_tokens=False)[0]
    assert allowed[-1][null]
    assert torch.equal(follower.allowed(tokens[:1], parents[:1], [0]), before)
    follower.take([*narrow, null])
    assert follower.completed_by([]) is False


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "format": "password"}, '"a"', "1"),
        ({"type": "string", "format": "x-made-up", "title": "T", "examples": [1]}, '"a"', "1"),
        ({"type": "string", "format": "date"}, '"2026-11-27"', '"a"'),  # a known format holds
        ({"properties": {"format": {"const": 1}, "not": {"const": 2}}}, '{"format":1}', '{"format":2}'),
        ({"const": {"format": "password"}}, '{"format":"password"}', "{}"),
        (
            {"type": "array", "uniqueItems": False, "items": {"format": "byte", "type": "string"}},
            '["a"]',
            "[1]",
        ),
        ({"$defs": {"a": {"type": "string", "format": "path"}}, "$ref": "#/$defs/a"}, '"a"', "1"),
        ({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2}]}, '"abcd"', "1"),
        ({"type": "object", "propertyNames": {"type": "string"}}, '{"a":1}', "1"),
        ({"$schema": "https://example.org/draft", "type": "integer"}, "1", '"a"'),
    ],
    ids=str,
)
def test_what_says_nothing_about_values_is_left_out_of_a_schema(
    target: Target, schema: dict[str, Any], right: str, wrong: str
) -> None:
    follower = Grammars(target.tokenizer, VOCAB_SIZE, [3]).follower({"json": schema})
    assert follower.completed_by(target.tokenizer.encode(right, add_special_tokens=False))
    assert not follower.completed_by(target.tokenizer.encode(wrong, add_special_tokens=False))


@pytest.mark.parametrize("keyword", [{"uniqueItems": True}, {"not": {"const": 1}}, {"if": {}, "then": {}}])
def test_what_restricts_values_and_is_not_supported_is_refused(
    target: Target, keyword: dict[str, Any]
) -> None:
    with pytest.raises(EngineError, match=next(iter(keyword))):
        Grammars(target.tokenizer, VOCAB_SIZE, [3]).follower({"json": {"type": "array", **keyword}})


def test_grammars_take_bounded_memory(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(target.tokenizer, VOCAB_SIZE, [3])
    with pytest.raises(EngineError, match="131,072"):
        grammars.follower({"json": {"const": "é" * 70_000}})
    monkeypatch.setattr(structured, "_MOST_RECENT", 3000)
    monkeypatch.setattr(structured, "_MOST_LIVE", 9000)
    forms = [{"choice": ["x" * 980 + f"{n:03}"]} for n in range(12)]
    for form in forms:  # nobody needs the earlier ones
        grammars.follower(form)
    assert len(grammars._live) < 4
    held = []
    for form in forms[:9]:
        held.append(grammars.follower(form))
    with pytest.raises(GrammarsFullError, match="try again later"):
        grammars.follower(forms[9])
    grammars.follower(forms[0])  # one that is in use needs no room
    held.clear()
    grammars.follower(forms[-1])


@pytest.mark.parametrize("other", [{"min_tokens": 1}, {"ignore_eos": True}])
def test_an_answer_with_a_form_ends_with_it(target: Target, other: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="leave out min_tokens and ignore_eos"):
        Engine(target).generate([[5]], structured_outputs=FORMS["regex"], **other)


def test_without_llguidance_the_error_says_how_to_install_it(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    with pytest.raises(EngineError, match=r'pip install "fledge\[structured\]"'):
        Engine(target).generate([[5]], structured_outputs=FORMS["regex"])
