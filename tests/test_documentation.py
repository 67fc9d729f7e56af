"""README's numbers equal committed results; notebooks run; the site builds without a warning."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fledge.bench import Summary, summarise
from tests.bench.synthetic import bench_result

ROOT = Path(__file__).parent.parent


def numbers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme_numbers", ROOT / "docs" / "readme_numbers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_published_numbers_equal_the_committed_results() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = path.read_text("utf-8")
        assert numbers().filled(text) == text, f"{path.name}: run python docs/readme_numbers.py"


def test_committed_results_parse() -> None:
    for path in (ROOT / "results").glob("*.json"):
        Summary.load(str(path))


def test_a_number_that_was_changed_by_hand_is_found(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    summarise(bench_result()).save(str(tmp_path / "results" / "demo.json"))
    page = "Before\n<!-- measured: results/demo.json -->\n<!-- /measured -->\nafter\n"
    made = numbers().filled(page, tmp_path)
    assert "| median speed-up | 1 | 1.47x | 2.31x |" in made
    assert made.startswith("Before\n")
    assert made.endswith("after\n")
    assert numbers().filled(made, tmp_path) == made
    assert numbers().filled(made.replace("1.47x", "1.97x"), tmp_path) == made


def execute(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=280, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.slow
def test_the_benchmark_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target_folder: Path, finished_run: Path
) -> None:
    settings = {"FLEDGE_TARGET": str(tiny_target_folder), "FLEDGE_HEAD": str(finished_run / "head")}
    execute("benchmark", tmp_path, monkeypatch, FLEDGE_QUICK="1", **settings)
    assert "</html>" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_the_training_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_recipe: Path
) -> None:
    execute("train_your_own", tmp_path, monkeypatch, FLEDGE_RECIPE=str(small_recipe), FLEDGE_RUN="run")
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "benchmark" / "index.html").exists()
