"""The filter at work in a run: what people wrote goes in, and none of it is in any file of the stages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fledge.base.errors import DataError
from fledge.base.storage import read_json
from fledge.data import PrivacyOptions, PromptOptions, read_prompts
from fledge.data.privacy import filter as privacy_filter
from fledge.data.privacy import read_audit
from fledge.data.privacy.filter import answer_scan
from fledge.data.responses import respond, respond_summary
from fledge.engine import Engine
from fledge.run.closing import write_run_card
from fledge.run.folder import Run
from fledge.run.pipeline import run_stage
from fledge.run.recipe import Recipe
from fledge.target import Target
from tests.data.conftest import files_of, killed_at_write

MAIL, PHONE, IBAN = "anna.kowalski@acme-mail.org", "(212) 555-7834", "DE89370400440532013000"
NAMES = ("Anna", "Kowalski")
CARD = "4111 1111 1111 1111"
DENIED = "zanzibarquartz"
PLANTED = (MAIL, "anna.kowalski", "acme-mail", PHONE, "555-7834", IBAN, "0532013000", CARD, *NAMES, DENIED)
TURNS = [
    ["My name is Anna Kowalski, please draft a short letter to the landlord about the broken heating."],
    [f"Please write to {MAIL} that the meeting about the new garden fence moves to next week."],
    [f"Call me at {PHONE} as soon as the report about the harbour project is ready to read."],
    [f"The refund goes to IBAN {IBAN}, how do I word a friendly reminder about it?"],
    ["How do I explain recursion to a beginner?", f"Send it to {MAIL}, signed Anna Kowalski."],
    [f"Summarise what is known about {DENIED} for the people of the other department."],
    [PHONE],
    [f"Mail {MAIL}"],
    [f"Why was my card {CARD} refused at the petrol station on the motorway?"],  # dropped
    ["Explain how a heat pump works in three plain sentences for a curious child."],
]


def recipe(target: Path, source: Path, **privacy: Any) -> Recipe:
    place = {"path": str(source), "name": "people", "licence": "own"}
    return Recipe.model_validate(
        {
            "target": {"model": str(target), "dtype": "float32", "backend": "torch"},
            "prompts": {"count": 9, "shard_size": 4, "sources": [place], "traffic": [place]},
            "respond": {"max_new_tokens": 24, "max_prompt_tokens": 512, "shard_size": 3, "max_batch": 4},
            "privacy": privacy,
        }
    )


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("people") / "people.jsonl"
    path.write_text(
        "".join(json.dumps({"turns": turns, "category": f"for {MAIL}"}) + "\n" for turns in TURNS)
    )
    return path


@pytest.fixture(scope="module")
def finished(talking_folder: Path, people: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    deny = [{"entity": "PROJECT", "words": [DENIED]}]
    rules = {"policy": "surrogate", "policies": {"CREDIT_CARD": "drop"}, "deny": deny}
    chosen = recipe(talking_folder, people, enabled=True, **rules)
    run = Run(chosen, str(tmp_path_factory.mktemp("private") / "run"))
    run_stage(run, "prompts")
    run_stage(run, "respond")
    write_run_card(run.folder)
    return run


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for part in pair for text in strings(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in strings(part))


def texts_of(path: Path, target: Target) -> Iterator[str]:
    """A file's bytes as text; of Parquet also all strings, and token ids decoded."""
    yield path.read_bytes().decode("utf-8", "ignore")
    if path.suffix == ".parquet":
        for row in pq.read_table(path).to_pylist():
            yield from strings(row)
            if "token_ids" in row:
                yield target.tokenizer.decode(row["token_ids"])


def test_no_planted_value_is_in_any_file_the_stages_wrote(finished: Run) -> None:
    files = [path for path in Path(finished.folder).rglob("*") if path.is_file()]
    assert {"prompts", "conversations"} <= {path.relative_to(finished.folder).parts[0] for path in files}
    kept = list(read_prompts(finished.url("prompts")))
    assert {prompt.row for prompt in kept} == set(range(len(TURNS))) - {8}
    assert list(pq.read_table(next(Path(finished.folder).rglob("conversations-00000.parquet")))["token_ids"])
    found = [
        (str(path.relative_to(finished.folder)), value)
        for path in files
        for text in texts_of(path, finished.target)
        for value in PLANTED
        if value.lower() in text.lower() and not (path.name == "recipe.yaml" and value == DENIED)
    ]
    assert found == []


def test_a_dropped_record_leaves_a_reason_and_no_hash(finished: Run) -> None:
    folder = Path(finished.url("prompts", "pool", "people", "rejects"))
    rows = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert [(row["attempt"], row["category"], row["reason"], row["hash"]) for row in rows] == [
        (8, "general", "private_policy", "")
    ]


def test_the_search_of_files_finds_planted_values_where_there_is_no_filter(
    talking_folder: Path, people: Path, tmp_path: Path
) -> None:
    run = Run(recipe(talking_folder, people, enabled=False), str(tmp_path / "run"))
    assert run.privacy is None
    run_stage(run, "prompts")
    run_stage(run, "respond")
    for part in ("prompts", "conversations"):
        texts = [t for p in (tmp_path / "run" / part).rglob("*.parquet") for t in texts_of(p, run.target)]
        assert all(any(value in text for text in texts) for value in (MAIL, PHONE, IBAN, *NAMES))


def test_counts_are_kept_per_shard_and_stand_in_the_card_without_the_listed_words(finished: Run) -> None:
    card = read_json(finished.url("data-card.json"))
    prompts = card["privacy"]["prompts"]
    assert prompts["scanned"] == len(TURNS) == card["privacy"]["traffic"]["scanned"]
    assert {"EMAIL_ADDRESS", "PHONE_NUMBER", "IBAN_CODE", "PERSON", "PROJECT"} <= set(prompts["entities"])
    assert prompts == read_audit(finished.url("prompts", "pool", "people")).to_dict()
    assert len(list(Path(finished.url("prompts", "pool", "people", "privacy")).glob("counts-*.json"))) == 3
    assert card["privacy"]["answers"]["scanned"] >= len(list(read_prompts(finished.url("prompts"))))
    for made_from in card["made_from"].values():
        assert made_from["privacy.policy"] == "surrogate"
        assert not {"privacy.deny", "privacy.allow", "privacy.lists"} & set(made_from)


def test_it_is_on_by_itself_for_what_people_wrote_only(talking_folder: Path, people: Path) -> None:
    chosen = recipe(talking_folder, people)
    assert Run(chosen, "unused").privacy == PrivacyOptions()
    own = chosen.model_copy(update={"prompts": PromptOptions()})
    assert Run(own, "unused").privacy is None
    forced = own.model_copy(update={"privacy": PrivacyOptions(enabled=True)})
    assert Run(forced, "unused").privacy is not None


def test_without_the_packages_nothing_is_written(
    talking_folder: Path, people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy_filter, "_NEEDED", ("no_such_package",))
    run = Run(recipe(talking_folder, people), str(tmp_path / "run"))
    with pytest.raises(DataError, match=r'pip install "fledge\[privacy\]"'):
        run_stage(run, "prompts")
    assert not list((tmp_path / "run").rglob("*.parquet"))


def test_an_answer_with_a_finding_is_not_kept(finished: Run, tmp_path: Path) -> None:
    scan = answer_scan(PrivacyOptions())
    assert scan is not None
    url, out = finished.url("prompts"), str(tmp_path / "out")
    asked = {prompt.prompt_id for prompt in read_prompts(url)}
    refused = iter([f"write to {MAIL}"])
    options = finished.recipe.respond
    engine = Engine(finished.target, max_batch=1, max_context=options.longest_request, kv_tokens=8192)
    respond(finished.target, engine, url, options, out, scan=lambda text: scan(next(refused, text)))
    assert respond_summary(len(asked), out).rejected["private_answer"] == 1
    assert read_audit(out).entities == {"EMAIL_ADDRESS": 1}
    assert read_audit(out).dropped == {"answer": 1}


@pytest.mark.parametrize("write", [8, *(pytest.param(other, marks=pytest.mark.slow) for other in (3, 14))])
def test_killed_and_started_again_the_counts_are_the_same(
    talking_folder: Path, people: Path, finished: Run, tmp_path: Path, write: int
) -> None:
    run = Run(finished.recipe, str(tmp_path / "run"))
    with killed_at_write(write):
        run_stage(run, "prompts")
    run_stage(run, "prompts")
    here, there = (files_of(Path(r.url("prompts"))) for r in (run, finished))
    assert {k: v for k, v in here.items() if k != "done.json"} == {
        k: v for k, v in there.items() if k != "done.json"
    }
