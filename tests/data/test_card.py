"""The data card: every figure of the pipeline, no text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fledge.base.errors import DataError
from fledge.base.fingerprint import make_fingerprint
from fledge.data import (
    PrivacyOptions,
    PromptOptions,
    RespondOptions,
    make_prompts,
    read_conversations,
    respond,
)
from fledge.data.card import _personal_data, make_card, render_card, write_card
from fledge.data.prompts import privacy_parts
from fledge.engine import Engine
from fledge.target import Target
from tests.data.test_mixing import CHAT, CODE, sentences, write_lines


def test_the_card_counts_every_step_and_holds_no_text(target: Target, engine: Engine, tmp_path: Path) -> None:
    texts = sentences(CODE, 20, 0)
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": text} for text in [*texts, texts[0], "Hi"]])
    evaluation = write_lines(tmp_path / "gsm.jsonl", [{"prompt": texts[3]}])
    traffic = write_lines(tmp_path / "t.jsonl", [{"prompt": text} for text in sentences(CHAT, 5, 3)])
    options = PromptOptions(
        count=12,
        sources=({"path": path, "name": "mine", "licence": "cc-by-nc-4.0"},),
        evaluation_files=(evaluation,),
        traffic=({"path": traffic, "licence": "own"},),
    )
    places = str(tmp_path / "prompts"), str(tmp_path / "conversations")
    make_prompts(target, None, options, places[0])
    answers = RespondOptions(max_new_tokens=8, max_prompt_tokens=256)
    respond(target, engine, places[0], answers, places[1])
    vocabulary = list(range(100))
    card = make_card(*places, vocabulary, {"entities": {"EMAIL": 3}})
    assert card["prompts"]["rows_read"] == 22
    assert card["prompts"]["rejected"] == {"evaluation": 1, "repeat": 1, "too_short": 1}
    assert (card["prompts"]["kept"], card["prompts"]["not_needed"]) == (12, 7)
    assert card["contamination"] == {"gsm.jsonl": 1}
    assert card["records_by_source_and_licence"] == [
        {"source": "mine", "licence": "cc-by-nc-4.0", "prompts": 12}
    ]
    assert card["distance_to_traffic"]["general"]["before"] > 0
    made = [
        t
        for c in read_conversations(places[1])
        for t, own in zip(c.token_ids, c.loss_mask, strict=True)
        if own
    ]
    found = card["conversations"]
    assert found["generated_tokens"] == len(made)
    assert found["draft_vocabulary_coverage"] == round(sum(t < 100 for t in made) / len(made), 4)
    assert sum(found["tokens_generated"].values()) == found["conversations"] == 12
    assert card["made_from"]["prompts"]["prompts.seed"] == 0
    write_card(str(tmp_path), card)
    assert json.loads((tmp_path / "data-card.json").read_text()) == card
    page = (tmp_path / "data-card.md").read_text()
    assert page == render_card(card)
    for shown in ("cc-by-nc-4.0", "forbids commercial use", "gsm.jsonl", "EMAIL", "rejected: too_short"):
        assert shown in page
    assert not any(text in page for text in texts)


def test_the_card_names_what_was_sought_and_what_happens_to_it(target: Target, tmp_path: Path) -> None:
    options = PrivacyOptions(policies={"API_KEY": "drop"}, answer_entities=("IBAN_CODE",))
    parts = make_fingerprint({"privacy": privacy_parts(options)}).parts
    facts = _personal_data(parts, parts)
    assert (set(facts["sought"]), facts["sought_in_answers"]) == (options.wanted, ["IBAN_CODE"])
    assert facts["policy"] == {"all others": "surrogate", "API_KEY": "drop"}
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": text} for text in sentences(CODE, 5, 0)])
    make_prompts(target, None, PromptOptions(sources=({"path": path, "licence": "own"},)), str(tmp_path))
    page = render_card(make_card(str(tmp_path), None) | {"personal_data": facts})
    assert "Answers were searched for: IBAN_CODE." in page
    assert "| API_KEY | drop |" in page
    assert "language that the rules don't cover" in page


def test_prompts_whose_selection_was_cut_short_have_no_card(target: Target, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": text} for text in sentences(CODE, 5, 0)])
    prompts = str(tmp_path / "prompts")
    make_prompts(target, None, PromptOptions(sources=({"path": path, "licence": "own"},)), prompts)
    (tmp_path / "prompts/selection.json").unlink()  # what is written last
    with pytest.raises(DataError, match="aren't finished; run `fledge prompts` again"):
        make_card(prompts, None)


def test_a_run_of_the_target_alone_has_a_card_too(finished_run: Path) -> None:
    card = json.loads((finished_run / "data-card.json").read_text())
    [source] = card["sources"]
    assert source["kind"] == "self"
    assert card["prompts"]["kept"] == source["chosen"] == 20
    assert card["conversations"]["draft_vocabulary"] == 128
    assert 0 < card["conversations"]["draft_vocabulary_coverage"] <= 1
