"""Pages stay short; their numbers equal committed results; notebooks run; the site builds without a warning."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import readme_numbers as numbers
from benchmarks.peers.table import read_peers
from benchmarks.ratios.line import Ratios
from fledge.bench import Summary, summarise
from fledge.bench.report.formats import number, times
from tests.bench.synthetic import bench_result

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))


def test_published_numbers_equal_the_committed_results() -> None:
    for path in PAGES:
        text = path.read_text("utf-8")
        assert numbers.filled(text) == text, f"{path.name}: run python -m benchmarks.readme_numbers"
    for name, chart in numbers.charts().items():
        drawn = (ROOT / "docs" / name).read_text("utf-8")
        assert drawn == chart.svg, f"{name}: run python -m benchmarks.readme_numbers"


def words_of(page: Path) -> int:
    """Words of a page, code and tables included: whatever holds a letter or a digit between two spaces."""
    return len(re.findall(r"\S*\w\S*", page.read_text("utf-8")))


def shelf(name: str) -> list[Path]:
    """The pages below a heading of the site's menu."""
    menu = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    part = re.split(r"^  - ", menu.partition(f"  - {name}:\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return [ROOT / "docs" / page for page in re.findall(r"^      - .+: (\S+\.md)$", part, re.MULTILINE)]


def test_readme_and_the_pages_for_users_stay_short() -> None:
    assert words_of(ROOT / "README.md") <= 600
    pages = [*shelf("Use"), *shelf("Understand")]
    assert len(pages) >= 15
    # What was tried, all tables and machines' histories are for the Lab.
    assert sum(map(words_of, pages)) <= 12_000


def test_committed_results_parse() -> None:
    for path in (ROOT / "results").glob("*.json"):
        if path.name == "simulated.json":
            numbers.Simulated.model_validate_json(path.read_text("utf-8"))
        elif "ratios" in path.name:
            Ratios.model_validate_json(path.read_text("utf-8"))
        else:
            Summary.load(str(path))
    for path in (ROOT / "results").glob("*.jsonl"):
        assert read_peers(str(path))


def shown(text: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of every match; a space in the pattern is any white space."""
    return [match.groups() for match in re.finditer(pattern.replace(" ", r"\s+"), text)]


class Results(NamedTuple):
    """The committed results that the pages' sentences are about."""

    demo: Summary
    other_demo: Summary  # without AMX,
    ratios: Ratios
    other_ratios: Ratios  # likewise


def committed() -> Results:
    folder = ROOT / "results"
    demos = (Summary.load(str(folder / name)) for name in ("demo.json", "demo-zen5.json"))
    ratios = (
        Ratios.model_validate_json((folder / name).read_text("utf-8"))
        for name in ("ratios.json", "zen5-ratios.json")
    )
    return Results(*demos, *ratios)


LIST = r"((?:[\d.]+, )*[\d.]+ and [\d.]+\d)"


def spoken(text: str, results: Results) -> Iterator[tuple[str, float]]:
    """Figures within sentences, as they are written, each with the committed result."""
    demo, other = results.demo, results.other_demo
    lines = {line.what: line.ratio.value for line in results.ratios.lines if line.ratio}
    for rows, cost in shown(text, r"of (\d+) nodes (?:cost )?(\d\.\d+)"):
        yield cost, lines[f"verify of {rows} rows over a plain step, context 256"]
    for (cost,) in shown(text, r"a draft step (\d\.\d+)"):
        yield cost, lines["draft step over a plain step, context 256"]
    assert demo.plain is not None
    assert demo.bandwidth is not None
    assert other.plain is not None
    for took, share, read in shown(
        text,
        r"Plain decode took ([\d.]+) ms per token in the demo's run, ([\d.]+) of what (?s:.{20,60}) at the "
        r"([\d.]+) GB/s",
    ):
        yield took, demo.plain.ms_per_token
        yield share, demo.plain.share_of_limit or 0.0
        yield read, demo.bandwidth.best_gb_s
    for released, tau, own, took in shown(
        text,
        r"`make demo FULL=1` in bf16 says ([\d.]+)x with the shipped head \(tau ([\d.]+)\) and ([\d.]+)x with its "
        r"own, plain decode at ([\d.]+) ms",
    ):
        assert other.released is not None
        shipped = other.released.workloads["mixed"]
        yield released, shipped.speedup
        yield tau, shipped.tau
        yield own, other.workloads["mixed"].speedup
        yield took, other.plain.ms_per_token
    for verb, ratios in (("answers", results.ratios), ("is", results.other_ratios)):
        gains = {line.what: line.ratio for line in ratios.lines}
        for levels, figures in shown(text, rf"ith {LIST} requests at once,? it {verb} {LIST} times"):
            for level, figure in zip(numbers_in(levels), numbers_in(figures), strict=True):
                found = gains[f"throughput, {level} at once: head over plain"]
                assert found is not None
                yield figure, found.value


def numbers_in(text: str) -> list[str]:
    return re.findall(r"[\d.]*\d", text)


def test_numbers_in_sentences_equal_the_committed_results() -> None:
    pages = (ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "lab" / "results.md")
    found = list(spoken("\n".join(page.read_text("utf-8") for page in pages), committed()))
    # A sentence that was put differently isn't looked up any more: change its pattern, too.
    assert len(found) >= 22
    for written, measured in found:
        digits = len(written.partition(".")[2])
        assert written == f"{measured:.{digits}f}"


def test_a_number_in_a_sentence_that_was_changed_by_hand_is_found() -> None:
    results = committed()
    (cost, measured), (changed, step) = spoken(
        "A verify of 8\nnodes cost 1.10 plain steps, a draft step 9.99.", results
    )
    assert (cost, f"{measured:.2f}") == ("1.10", "1.10")
    assert (changed, f"{step:.2f}") == ("9.99", "0.06")


def test_a_number_that_was_changed_by_hand_is_found(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    several = bench_result()
    mixed = [row for row in several.answers if row.workload == "mixed"]
    summarise(several.model_copy(update={"answers": mixed})).save(str(tmp_path / "results" / "demo.json"))
    summarise(several).save(str(tmp_path / "results" / "files.json"))
    page = "Before\n<!-- measured: results/demo.json -->\n<!-- /measured -->\nafter\n"
    made = numbers.filled(page, tmp_path)
    assert "| median speed-up | 1 | 1.47x | 2.31x |" in made
    assert made.startswith("Before\n")
    assert made.endswith("after\n")
    assert numbers.filled(made, tmp_path) == made
    assert numbers.filled(made.replace("1.47x", "1.97x"), tmp_path) == made
    whole = numbers.filled(page.replace("measured:", "measured in full:", 1), tmp_path)
    assert "| mixed | head trained in the demo |" in whole
    files = numbers.filled(page.replace("demo.json", "files.json"), tmp_path)
    assert "| gsm8k | shipped head |" in files
    assert "| all prompts | shipped head |" in files
    assert "Example Processor 9000" in whole


def test_charts_are_drawn_from_the_newest_results_and_say_what_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert numbers.charts(tmp_path) == {}
    page = "<!-- chart: docs/never-slower.svg -->\n<!-- /chart -->\n"
    assert numbers.filled(page, tmp_path) == page
    for date, ratio in (("2026-11-26", 0.5), ("2026-11-27", 1.004)):
        line = {"what": "", "base": 1.0, "other": ratio, "unit": "tokens/s", "head": "poor head", "level": 8}
        line["ratio"] = {"value": ratio, "low": ratio, "high": ratio, "count": 1}
        made = {
            "target": "t",
            "date": date,
            "command": "python -m benchmarks.ratios --only levels",
            "versions": {},
        }
        made |= {"machine": bench_result().machine.model_dump(), "lines": [line]}
        (tmp_path / "results" / f"ratios-{date}.json").write_text(json.dumps(made))
    assert numbers.filled(page, tmp_path) == (
        "<!-- chart: docs/never-slower.svg -->\n![Throughput over plain decode](docs/never-slower.svg)\n\n"
        "On 2 cores of Example Processor 9000, 2026-11-27 (`python -m benchmarks.ratios --only levels`). "
        "The lowest point, 1.00×, is that of the poor head with 8 requests.\n<!-- /chart -->\n"
    )
    heads = {
        "good": {"1": 2.4, "128": 1.1},
        "poor": {"1": 1.3, "128": 1.01},
        "random": {"1": 1.0, "128": 0.992},
    }
    simulated = {"command": "python -m tests.engine.devices", "date": "2026-11-27", "note": "simulated"}
    simulated["devices"] = {"H100, 8B": heads, "L4, 1B": heads | {"random": {"1": 0.991, "128": 0.999}}}
    (tmp_path / "results" / "simulated.json").write_text(json.dumps(simulated))
    chart = numbers.charts(tmp_path)["never-slower-simulated.svg"]
    texts = re.findall(r"<text[^>]*>([^<]+)<", chart.svg)
    assert texts[0] == "Simulated, not measured: throughput over plain decode"
    assert [text for text in texts if text in simulated["devices"] or text.startswith("lowest")] == [
        *("H100, 8B", "lowest 0.99×", "L4, 1B", "lowest 0.99×")
    ]
    assert chart.sentence.startswith(
        "Simulated, not measured (`python -m tests.engine.devices`, 2026-11-27)."
    )
    assert chart.sentence.endswith("0.99×, is that of the random head on L4, 1B with 1 request.")


def test_the_chart_of_engines_shows_each_in_its_faster_mode(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    rows = [
        ("fledge", "plain", 90.0),
        ("fledge", "eagle3", 154.2),
        ("vllm", "plain", 34.0),
        ("vllm", "eagle3", 20.0),
    ]
    made = [
        {
            "peer": peer,
            "mode": mode,
            "version": f"{peer} 1",
            "concurrency": level,
            "repeat": 0,
            "tpot_ms": 1.0,
        }
        | {"throughput": speed * level, "identical": 8, "own": 8, "answers": 8}
        for peer, mode, speed in rows
        for level in (1, 8)
    ]
    (tmp_path / "results" / "peers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    chart = numbers.charts(tmp_path)["engines.svg"]
    assert re.findall(r'class="(?:end|start)"[^>]*>([^<]+)<', chart.svg) == [
        *("fledge, eagle3", "154", "vllm, plain", "34")
    ]


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


def test_the_benchmark_notebook_prints_a_workload_whose_times_were_not_believed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    book = json.loads((ROOT / "notebooks" / "benchmark.ipynb").read_text("utf-8"))
    cell = next(source for cell in book["cells"] if "run_bench(" in (source := "".join(cell["source"])))
    result = bench_result()
    result.answers = [row.model_copy(update={"rejected": "speed-up above tau"}) for row in result.answers]
    names = {"result": result, "summarise": summarise, "number": number, "times": times}
    exec(cell[cell.index("for name, found") :], names)
    assert "– (95 % – to –)" in capsys.readouterr().out


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
