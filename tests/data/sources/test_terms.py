"""Sources without declared terms are refused; restrictive ones are warned of."""

from __future__ import annotations

import pytest

from fledge.base.errors import DataError
from fledge.data.sources import check_terms


@pytest.mark.parametrize(
    "licence", ["apache-2.0", "MIT", "cc-by-4.0", "CC-BY-SA-3.0", "odc-by", "own", "cc0-1.0"]
)
def test_open_licences_pass_without_a_word(licence: str) -> None:
    terms = check_terms("s", licence, None)
    assert terms.licence == licence
    assert terms.declared_by == "licence"
    assert terms.warnings == ()


@pytest.mark.parametrize(
    ("licence", "allowed", "message"),
    [
        ("", None, r"no declared terms.*licence.*training_allowed: true"),
        ("  ", None, "no declared terms"),
        ("acme-eula", None, r"'acme-eula', which fledge doesn't know.*training_allowed"),
        ("other", None, "doesn't know"),
        ("apache-2.0", False, r"don't allow training; remove"),
    ],
)
def test_undeclared_unknown_and_forbidden_terms_are_refused(
    licence: str, allowed: bool | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        check_terms("s", licence, allowed)


@pytest.mark.parametrize(
    ("licence", "message"),
    [
        ("cc-by-nc-4.0", "commercial"),
        ("CC BY-NC-SA 4.0", "commercial"),
        ("some-noncommercial", "commercial"),
        ("openai-terms", "compete"),
        ("llama2", "compete"),
        ("llama3", "compete"),
    ],
)
def test_restrictive_terms_warn(licence: str, message: str) -> None:
    [warning] = check_terms("s", licence, None).warnings
    assert message in warning
    assert check_terms("s", licence, True).warnings == (warning,)


def test_the_recipe_can_vouch_for_terms() -> None:
    assert check_terms("s", "acme-eula", True).declared_by == "recipe"
    assert check_terms("s", "", True).licence == "not stated"
