"""A run measured on its own held-out prompts, and an estimate that knows its sources before the first prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fledge.base.errors import DataError, FingerprintError
from fledge.base.fingerprint import Fingerprint
from fledge.bench import Summary
from fledge.data import read_conversations, read_prompts
from fledge.data.prompts import gather_sources
from fledge.run.estimate import estimate
from fledge.run.folder import Run
from fledge.run.heldout import heldout_workloads
from fledge.run.pipeline import run_pipeline, run_stage
from fledge.run.recipe import load_recipe
from tests.data.sources.test_exports import open_webui

SUBJECTS = ("bread", "chess", "rivers", "glass", "storms", "bees", "maps", "tea", "clocks", "violins")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Ten chats of two turns, as many as the target fills up to."""
    file = tmp_path_factory.mktemp("chats") / "chats.json"
    text = json.dumps([open_webui()])
    rows = [
        json.loads(text.replace("boats", subject).replace("some", f"some {subject}"))[0]
        for subject in SUBJECTS
    ]
    file.write_text(json.dumps([*rows, rows[0]]))
    sources = f"[{{path: {file}, name: mine, licence: own}}, {{kind: self, weight: 1e-9}}]"
    return [
        f"prompts.sources={sources}",
        "privacy.enabled=false",
        "respond.heldout=0.5",
        "bench.concurrency=[]",
    ]


def test_the_benchmark_measures_on_heldout_prompts_those_of_sources_first(
    small_recipe: Path, settings: list[str], tmp_path: Path
) -> None:
    measured = [*settings, "bench.own_prompts=0", "bench.heldout_prompts=9", "prompts.count=30"]
    run = Run(load_recipe(str(small_recipe), measured), str(tmp_path / "run"))
    run_pipeline(run)
    heldout = {one.prompt_id for one in read_conversations(run.url("conversations"), "heldout")}
    sides = [p.source for p in read_prompts(run.url("prompts")) if p.prompt_id in heldout]
    chats, own = sides.count("mine"), sides.count("self")
    assert chats
    assert own > 9 - chats
    found = {name: row.prompts for name, row in Summary.load(run.url("summary.json")).workloads.items()}
    assert found == {"held-out": chats, "held-out self": 9 - chats}
    texts = {turn for w in heldout_workloads(run.url("prompts"), run.url("conversations"), 99) for p in w.prompts
             for turn in p.turns}  # fmt: skip
    trained = {p.turns[0] for p in read_prompts(run.url("prompts")) if p.prompt_id not in heldout}
    assert not texts & trained
    (tmp_path / "run" / "conversations" / "manifest.json").unlink()
    with pytest.raises(DataError, match="no conversations in"):
        heldout_workloads(run.url("prompts"), run.url("conversations"), 9)


def test_a_benchmark_of_other_heldout_prompts_is_another(finished_run: Path, small_recipe: Path) -> None:
    before = Fingerprint.load(str(finished_run / "bench"))
    assert before is not None
    assert not [name for name in before.parts if "heldout" in name]  # those of earlier versions still count
    with pytest.raises(FingerprintError, match=r"bench was made from other inputs \(bench.heldout_prompts"):
        run_stage(
            Run(load_recipe(str(small_recipe), ["bench.heldout_prompts=2"]), str(finished_run)), "bench"
        )


def test_the_estimate_counts_what_sources_give_and_lack_once_they_are_read(
    small_recipe: Path, settings: list[str], tmp_path: Path
) -> None:
    run = Run(load_recipe(str(small_recipe), settings), str(tmp_path / "run"))
    alone = Run(load_recipe(str(small_recipe), ["prompts.count=10"]), str(tmp_path / "alone"))
    wanted = estimate(alone, ["prompts", "respond"])
    gather_sources(run.target, run.prompt_options, run.url("prompts"))
    known = estimate(run, ["prompts", "respond"])
    assert known[0].tokens == pytest.approx(wanted[0].tokens)  # 10 of 20
    assert known[1].tokens == pytest.approx(wanted[1].tokens * 30 / 10)  # ten of them have two turns
    run_stage(run, "prompts")
    assert estimate(run, ["respond"])[0].tokens == pytest.approx(known[1].tokens)
