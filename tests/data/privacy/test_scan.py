"""Findings of a whole text and of a conversation: in order, apart, and found again wherever they stand."""

import itertools

import pytest

from fledge.data import PrivacyFilter
from tests.data.privacy.sentences import read, unmarked


def test_a_name_alone_counts_only_beside_personal_data(privacy: PrivacyFilter) -> None:
    def found(text: str) -> list[str]:
        return [text[f.start : f.end] for f in privacy.scan(text)]

    assert found("Martha Whitfield has 3 apples in Leeds.") == []
    assert found("Martha Whitfield, 020 7123 4567, likes Leeds.") == [
        "Martha Whitfield",
        "020 7123 4567",
        "Leeds",
    ]
    assert found("Martha Whitfield is my sister and likes Leeds.") == ["Martha Whitfield", "Leeds"]


def test_findings_are_in_order_and_apart(privacy: PrivacyFilter) -> None:
    lines = [line for heading, lines in read("values").items() if heading != "nobody" for line in lines]
    findings = privacy.scan(" ".join(unmarked(line)[0] for line in lines))
    assert len(findings) > 40
    assert all(a.end <= b.start for a, b in itertools.pairwise(findings))


def test_a_value_found_once_is_found_everywhere_in_the_conversation(privacy: PrivacyFilter) -> None:
    first, second = privacy.scan_turns(["My name is Zxyvik Tarwoll.", "So what should Tarwoll do?"])
    assert first[0].entity == "PERSON"
    assert [(f.start, f.end) for f in second] == [(15, 22)]


def test_a_value_is_not_found_inside_other_words(privacy: PrivacyFilter) -> None:
    _, second = privacy.scan_turns(["My name is Zxyvik Tarwoll.", "preTarwoll, Tarwollen and Tarwoll differ"])
    assert [(f.start, f.end) for f in second] == [(26, 33)]


def test_a_number_dialled_to_a_country_that_there_is_not_is_no_error(privacy: PrivacyFilter) -> None:
    assert privacy.scan("she is on 011 999 12345, or the part 01199912345 for ann@mail.example") == []


def test_a_text_longer_than_a_piece_is_scanned_to_its_end(privacy: PrivacyFilter) -> None:
    text = "word " * 50_000 + "mail jo.k@acme.org"
    assert [text[f.start : f.end] for f in privacy.scan(text)] == ["jo.k@acme.org"]


def test_only_the_first_date_behind_a_birth_is_one(privacy: PrivacyFilter) -> None:
    text = "Müller, geb. 3.12.1965, stellte sich am 15.10.1982 vor"
    births = [text[f.start : f.end] for f in privacy.scan(text) if f.entity == "DATE_OF_BIRTH"]
    assert births == ["3.12.1965"]


@pytest.mark.parametrize(
    "piece",
    [
        "1 ", "1-", "Anna ", "a at b dot ", "name,", "(", "curl -u ", "rue de la ", "DE12 3456 ", "password for ",
        "pass: ", "passport ", "no. ", "born ", "key=", "on 12 ", "1.2-",
    ],
)  # fmt: skip
def test_a_long_repetition_comes_to_an_end(privacy: PrivacyFilter, piece: str) -> None:
    """With a pattern that backtracks without bounds this would not return."""
    assert isinstance(privacy.scan(piece * 3000), list)
