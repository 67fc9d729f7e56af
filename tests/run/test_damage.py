"""No damaged file of a run passes unnoticed, and what an error advises ends well (`damage.py` does the damage)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.run.damage import Case, Workshop


@pytest.fixture(scope="module")
def workshop(small_recipe: Path, finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(small_recipe, finished_run, tmp_path_factory.mktemp("damage"))


OFTEN = [
    (Case("within train", "train/checkpoint.safetensors", "half"), "named"),
    (Case("finished", "evaluation.json", "half"), "named"),
    (Case("finished", "report/fingerprint.json", "empty"), "healed"),
    (Case("finished", "train/checkpoint.safetensors", "flip"), "harmless"),
]
OTHERS = [
    (Case("after prompts", "prompts/manifest.json", "half"), "named"),
    (Case("within respond", "conversations/waiting.parquet", "flip"), "named"),
    (Case("within respond", "conversations/fingerprint.json", "half"), "named"),
    (Case("after train", "head/model.safetensors", "flip"), "named"),
    (Case("after train", "recipe.yaml", "empty"), "named"),
    (Case("finished", "train/metrics.jsonl", "half"), "named"),
]


@pytest.mark.parametrize(
    ("case", "outcome"),
    [*OFTEN, *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS)],
    ids=str,
)
def test_a_damaged_file_is_named_healed_or_never_read(workshop: Workshop, case: Case, outcome: str) -> None:
    assert case in set(workshop.cases())
    assert workshop.outcome(case) == outcome


@pytest.mark.slow
def test_no_damage_passes_unnoticed(workshop: Workshop) -> None:
    cases = list(workshop.cases())
    random.Random(0).shuffle(cases)
    for case in cases[:200]:
        assert workshop.outcome(case) in ("named", "healed", "harmless"), case
