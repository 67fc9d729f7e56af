"""What a run says at its end: each verdict by the figures that it is drawn from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fledge.bench import Summary
from fledge.bench.report import render_report
from fledge.bench.summary import WorkloadSummary
from fledge.run.closing import report_facts
from fledge.run.folder import Run
from fledge.run.outcome import outcome, serve_command
from fledge.run.recipe import Recipe, load_recipe


@pytest.fixture
def recipe(small_recipe: Path) -> Recipe:
    return load_recipe(str(small_recipe))


def measured(finished_run: Path, **changes: object) -> Summary:
    summary = Summary.load(str(finished_run / "summary.json"))
    row: WorkloadSummary = summary.workloads["mixed"].model_copy(update=changes)
    return summary.model_copy(update={"workloads": {"mixed": row}})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"speedup_low": 1.01, "speedup_high": 1.5}, "; it pays on this machine (95 %: 1.01 to 1.50)"),
        (
            {"speedup_low": 0.7, "speedup_high": 0.99},
            "; it doesn't pay on this machine (95 %: 0.70 to 0.99): serve",
        ),
        (
            {"speedup_low": 0.9, "speedup_high": 1.1},
            "; it may or may not pay on this machine (95 %: 0.90 to 1.10)",
        ),
        (
            {"prompts": 7, "speedup_low": 1.2, "speedup_high": 1.5},
            "7 prompts); too few to tell whether it pays",
        ),
        ({"speedup": None}, "speed-up: not measured, the answers to mixed are too short"),
    ],
)
def test_whether_it_pays_is_what_the_interval_says(
    finished_run: Path, recipe: Recipe, changes: dict[str, object], verdict: str
) -> None:
    summary = measured(finished_run, **{"prompts": 64, "speedup": 1.2, **changes})
    assert verdict in "\n".join(outcome(Run(recipe, str(finished_run)), summary))


def test_the_report_shows_the_command_that_serves_its_head(finished_run: Path, recipe: Recipe) -> None:
    run = Run(recipe, str(finished_run))
    command = serve_command(run)
    assert f"serve it: {command}" in outcome(run, None)
    facts = report_facts(run, {})
    assert facts.serve == command
    assert f"<pre>{command}</pre>" in render_report(facts)
    assert "To serve its head" not in render_report(replace(facts, serve=""))


def test_llama_cpp_is_for_those_who_have_a_gguf_file(finished_run: Path, recipe: Recipe) -> None:
    folder, gguf = str(finished_run), recipe.target.model_copy(update={"model": "my model.gguf"})
    assert "llama-server" not in "".join(outcome(Run(recipe, folder), None))
    of_file = outcome(Run(recipe.model_copy(update={"target": gguf}), folder), None)
    assert f"serve it: fledge serve 'my model.gguf' --head {folder}/head" in of_file
    assert any(line.startswith("  llama-server -m 'my model.gguf' -md ") for line in of_file)


def test_nothing_is_said_of_a_head_that_is_not_there_or_was_replaced(
    finished_run: Path, recipe: Recipe, tmp_path: Path
) -> None:
    assert outcome(Run(recipe, str(tmp_path)), None) == []
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    weights = folder / "head" / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    assert [line.split(":")[0] for line in outcome(Run(recipe, str(folder)), None)] == ["serve it"]
