"""Policies, invented values, and the second pass."""

from __future__ import annotations

import pytest

from fledge.base.errors import DataError
from fledge.data import PrivacyFilter, PrivacyOptions
from fledge.data.privacy import entities as e
from fledge.data.privacy import fiction
from fledge.data.privacy.lexicon import lexicon
from tests.data.privacy import corpora

TEXT = (
    "I'm Anna Kowalski. Mail anna@acme.org, card 4111 1111 1111 1111. Anna is away; ask Ms. Kowalski again."
)


def test_redact_puts_typed_placeholders(redact: PrivacyFilter) -> None:
    treated = redact.treat(TEXT)
    assert treated.text is not None
    assert treated.text.startswith("I'm <PERSON>. Mail <EMAIL_ADDRESS>, card <CREDIT_CARD>.")
    assert treated.counts == {"CREDIT_CARD": 1, "EMAIL_ADDRESS": 1, "PERSON": 3}


def test_surrogates_are_consistent_seeded_and_never_the_original(privacy: PrivacyFilter) -> None:
    treated, again = (
        privacy.treat([TEXT, "Anna Kowalski called."], "c1"),
        privacy.treat([TEXT, "Anna Kowalski called."], "c1"),
    )
    assert treated == again
    assert treated.turns is not None
    first, second = treated.turns
    given, family = second.removesuffix(" called.").split()
    assert first.startswith(f"I'm {given} {family}. Mail ")
    assert f"{given} is away; ask Ms. {family} again." in first
    assert not any(value in first + second for value in ("Anna", "Kowalski", "acme", "4111"))
    assert privacy.treat([TEXT], "c2").turns != [first]


def test_a_name_found_once_is_found_in_capitals_too(redact: PrivacyFilter) -> None:
    turns = ["My name is Anna Kowalski.", "Form 3b: KOWALSKI, as above"]
    assert redact.treat(turns).turns == ["My name is <PERSON>.", "Form 3b: <PERSON>, as above"]


def test_a_name_found_once_is_found_in_small_letters_too(
    redact: PrivacyFilter, privacy: PrivacyFilter
) -> None:
    turns = ["My name is Anna Kowalski.", "was anna kowalski there? tell kowalski! and her mark is good"]
    assert redact.treat(turns).turns == [
        "My name is <PERSON>.",
        "was <PERSON> there? tell <PERSON>! and her mark is good",
    ]
    treated = privacy.treat(turns).turns
    assert treated is not None
    given, family = treated[0].removeprefix("My name is ").removesuffix(".").split()
    assert treated[1] == f"was {given} {family} there? tell {family}! and her mark is good"


def test_drop_by_entity_drops_the_record_only_where_the_entity_is_found() -> None:
    options = PrivacyOptions(policy="redact", policies={e.CREDIT_CARD: "drop"})
    privacy = PrivacyFilter(options=options)
    assert privacy.treat(TEXT).turns is None
    assert privacy.treat(TEXT).reason == "policy"
    assert privacy.treat("Mail anna@acme.org").text == "Mail <EMAIL_ADDRESS>"


def test_a_record_whose_second_pass_finds_something_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    privacy = PrivacyFilter(policy="surrogate")
    monkeypatch.setattr(privacy, "_replaced", lambda turns, found, key: ["mail bob@acme.org"])
    assert privacy.treat("mail anna@acme.org").reason == "second_pass"


def test_recipe_can_add_patterns_words_and_exceptions() -> None:
    options = PrivacyOptions.model_validate(
        {
            "policy": "redact",
            "patterns": [{"entity": "EMPLOYEE_ID", "regex": r"\bE-(\d{4})\b", "near": ["employee"]}],
            "deny": [{"entity": "PROJECT", "words": ["Blue Heron"]}],
            "allow": ["support@acme.org"],
        }
    )
    treated = PrivacyFilter(options=options).treat(
        "Employee E-1234 on blue heron, support@acme.org, but a long way from there E-5678"
    )
    assert (
        treated.text
        == "Employee E-<EMPLOYEE_ID> on <PROJECT>, support@acme.org, but a long way from there E-5678"
    )


def test_organisations_are_found_only_if_asked_for(privacy: PrivacyFilter) -> None:
    text = "The offer of Halvorsen Logistics GmbH is late."
    asked = PrivacyFilter(options=PrivacyOptions(entities=(e.ORGANIZATION,)))
    assert [f.entity for f in asked.scan(text)] == [e.ORGANIZATION]
    assert e.ORGANIZATION not in {f.entity for f in privacy.scan(text)}


@pytest.mark.parametrize(
    "values",
    [
        {"policies": {"NONSENSE": "drop"}},
        {"patterns": [{"entity": "X", "regex": "("}]},
        {"patterns": [{"entity": "X", "regex": "a*"}]},
    ],
)
def test_bad_options_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"unknown entity|regular expression"):
        PrivacyOptions.model_validate(values)


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(DataError, match="unknown policy"):
        PrivacyFilter(policy="hide")  # type: ignore[arg-type]


def test_invented_names_are_in_no_list() -> None:
    lists = lexicon()
    invented = [word.lower() for word in (*fiction.GIVEN, *fiction.FAMILY, *fiction.PLACES)]
    assert [
        word for word in invented if lists.is_any_name(word) or word in lists.cities or word in lists.common
    ] == []


@pytest.mark.parametrize("policy", ["surrogate", "redact"])
def test_a_fresh_scan_of_treated_texts_finds_nothing_and_no_value_survives(policy: str) -> None:
    options = PrivacyOptions.model_validate({"policy": policy})
    privacy, fresh = PrivacyFilter(options=options), PrivacyFilter(options=options)
    dropped = 0
    for record in corpora.read("first")[:100]:
        treated = privacy.treat(record.text)
        dropped += treated.turns is None
        if treated.text is None:
            continue
        assert fresh.scan(treated.text) == []
        found = privacy.scan(record.text)
        for span in record.spans:
            value = record.text[span.start : span.end]
            covered = any(f.start <= span.start and span.end <= f.end for f in found)
            assert not covered or len(value) < 5 or value not in treated.text
    assert dropped <= 3


# In the first corpus most names have nothing beside them.
@pytest.mark.parametrize(
    ("name", "recall", "recall_of_names"),
    [
        ("first", 0.996, 0.759),
        ("second", 0.996, 0.869),
        ("third", 0.991, 0.764),
        ("fourth", 0.993, 0.888),
        ("fifth", 0.974, 0.879),
    ],
)
def test_recall_and_precision_of_labelled_corpora_do_not_fall(
    privacy: PrivacyFilter, name: str, recall: float, recall_of_names: float
) -> None:
    corpus = corpora.read(name)
    identifiers = corpora.recall_and_precision(privacy, corpus, e.PATTERNED)
    assert identifiers[0] >= recall
    assert identifiers[1] >= 0.984
    english = [record for record in corpus if record.language == "en"]
    names = corpora.recall_and_precision(privacy, english, e.NAMES)
    assert names[0] >= recall_of_names
    assert names[1] >= 0.972
