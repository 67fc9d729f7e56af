"""The own sets of one kind each, and the generated workloads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fledge.base.errors import DataError
from fledge.bench.workloads import (
    SETS,
    find_workload,
    own_set,
    own_workload,
)


def eight_grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[n : n + 8]) for n in range(len(words) - 7)}


@pytest.mark.parametrize("name", SETS)
def test_every_set_has_forty_different_prompts(name: str) -> None:
    prompts = own_set(name).prompts
    assert len(prompts) >= 40
    assert len({prompt.turns[0] for prompt in prompts}) == len(prompts)
    assert len({prompt.question_id for prompt in prompts}) == len(prompts)
    assert all(prompt.question_id.startswith(name) for prompt in prompts)


def test_only_conversations_have_several_turns() -> None:
    assert all(len(prompt.turns) >= 3 for prompt in own_set("multi_turn").prompts)
    assert all(len(prompt.turns) == 1 for name in SETS[1:] for prompt in own_set(name).prompts)


def test_no_prompt_repeats_another_set() -> None:
    seen: dict[tuple[str, ...], str] = {}
    sets = [own_workload(), *(own_set(name) for name in SETS if name != "long_context")]
    phrase = eight_grams("Answer the question using the text only. Text: the")
    for workload in sets:
        for prompt in workload.prompts:
            own = set().union(*map(eight_grams, prompt.turns)) - phrase
            assert not {seen[gram] for gram in own & seen.keys()} - {prompt.question_id}
            seen |= dict.fromkeys(own, prompt.question_id)


def test_a_long_context_prompt_holds_its_note_once_at_any_depth() -> None:
    notes = [prompt.turns[0].partition("\n\n")[2] for prompt in own_set("summarisation").prompts]
    depths = []
    for index, prompt in enumerate(own_set("long_context").prompts):
        text = prompt.turns[0]
        assert text.count(notes[index]) == 1
        assert 1800 < len(text.split()) < 3200
        depths.append(text.index(notes[index]) / len(text))
    assert min(depths) < 0.15
    assert max(depths) > 0.75
    assert own_set("long_context") == own_set("long_context")


def test_workloads_are_found_by_what_people_write(tmp_path: Path) -> None:
    assert find_workload("mixed").name == "mixed"
    path = tmp_path / "mine.jsonl"
    path.write_text('{"turns": ["Hello!"]}\n')
    assert find_workload(str(path)).name == "mine"
    with pytest.raises(DataError, match="no workload"):
        find_workload("maths")


def test_a_hub_data_set_is_a_workload(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    rows = "".join(f'{{"question": "What is {n} + {n}?", "answer": "{2 * n}"}}\n' for n in range(6))
    (tmp_path / "train.jsonl").write_text(rows)
    found = find_workload(f"dataset:{tmp_path},field=question,count=4")
    assert [prompt.turns for prompt in found.prompts] == [(f"What is {n} + {n}?",) for n in range(4)]
    assert len({prompt.question_id for prompt in found.prompts}) == 4
    for wrong in ("dataset:", f"dataset:{tmp_path},rows=4", f"dataset:{tmp_path},count=none"):
        with pytest.raises(DataError, match="write dataset:NAME,count=40"):
            find_workload(wrong)
