"""Values that only the word before them makes personal: plates, identity cards, passwords, user names, signatures."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from fledge.data.privacy import PrivacyFilter

LEAST = 0.9  # recall of each kind over the five languages, and of each language over the kinds


def read() -> dict[str, list[str]]:
    """The sentences of each heading: "plate, en"."""
    sections: dict[str, list[str]] = defaultdict(list)
    heading = ""
    for line in (Path(__file__).parent / "cues.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            heading = line.strip("[]")
        elif line and not line.startswith("#"):
            sections[heading].append(line)
    return sections


SENTENCES = read()
FOUND = {heading: lines for heading, lines in SENTENCES.items() if "," in heading}


def covered(privacy: PrivacyFilter, marked: str) -> bool:
    """Whether every letter and digit of «the value» is found, whatever it is taken for."""
    start, end = marked.index("«"), marked.index("»") - 1
    text = marked.replace("«", "").replace("»", "")
    places = {place for finding in privacy.scan(text) for place in range(finding.start, finding.end)}
    return all(place in places or not text[place].isalnum() for place in range(start, end))


def test_what_only_a_cue_makes_personal_is_found(privacy: PrivacyFilter) -> None:
    assert sum(map(len, FOUND.values())) > 130
    missed = {
        heading: [line for line in lines if not covered(privacy, line)] for heading, lines in FOUND.items()
    }
    for part in {part for heading in FOUND for part in heading.split(", ")}:
        headings = [heading for heading in FOUND if part in heading.split(", ")]
        count, lost = (sum(len(lines[heading]) for heading in headings) for lines in (FOUND, missed))
        assert lost <= (1 - LEAST) * count, (part, missed)


def test_the_rules_hold_for_sentences_written_after_them(privacy: PrivacyFilter) -> None:
    later = SENTENCES["later"]
    missed = [line for line in later if not covered(privacy, line)]
    assert len(later) > 100
    assert len(missed) <= (1 - LEAST) * len(later), missed


def test_what_is_found_can_be_replaced(privacy: PrivacyFilter) -> None:
    lines = [line for lines in FOUND.values() for line in lines if covered(privacy, line)]
    texts = [line.replace("«", "").replace("»", "") for line in lines]
    assert [text for text in texts if privacy.treat(text).text in (None, text)] == []


@pytest.mark.parametrize("text", SENTENCES["nobody"])
def test_the_same_words_without_a_value_are_nobodys(privacy: PrivacyFilter, text: str) -> None:
    assert [text[finding.start : finding.end] for finding in privacy.scan(text)] == []
