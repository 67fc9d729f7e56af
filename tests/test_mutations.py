"""The list of mutations doesn't rot: each changes text that is there, and names tests that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, mutated

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "fledge"


def test_every_mutation_changes_text_that_is_there_once() -> None:
    for mutation in MUTATIONS:
        text = (SOURCE / mutation.file).read_text("utf-8")
        assert mutated(text, mutation) != text


def test_every_mutation_names_tests_that_there_are() -> None:
    for mutation in MUTATIONS:
        for argument in mutation.tests.split():
            file, _, test = argument.partition("::")
            assert (TESTS / file).exists(), f"{mutation.name}: no {file}"
            assert not test or f"def {test}(" in (TESTS / file).read_text("utf-8"), (
                f"{mutation.name}: no {test}"
            )


def test_names_tell_mutations_apart() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert sorted(set(names)) == sorted(names)


def test_a_mutation_whose_text_is_gone_or_there_twice_is_named() -> None:
    mutation = MUTATIONS[0]
    for text in ("", 2 * mutation.old):
        with pytest.raises(
            ValueError, match=f"{mutation.name}: .* {text.count(mutation.old)} times in {mutation.file}"
        ):
            mutated(text, mutation)
