"""`fledge bench server`: which options go together, and what it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fledge.base.errors import DataError, ServerError
from fledge.bench.load import LoadResult
from fledge.commands.main import app
from tests.bench.fake_server import fake
from tests.bench.synthetic import load_result

ONE_REQUEST = ("--concurrency", 1, "--requests", 1, "--repeats", 1)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with fake() as address:
        yield f"one={address}"


def invoke(server: str, *arguments: object) -> str:
    result = CliRunner().invoke(app, ["bench", "server", "--server", server, *map(str, arguments)])
    assert result.exception is None, result.output
    return result.output


def test_lengths_in_the_rows_are_asked_for_and_other_sampling_is_named(server: str, tmp_path: Path) -> None:
    log = tmp_path / "monday.jsonl"
    asked = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.7}
    rows = [{"body": {**asked, "max_tokens": tokens}} for tokens in (5, 9)]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    load = ("--concurrency", 1, "--requests", 2, "--repeats", 1)
    invoke(server, "--workload", log, *load, "--run-dir", tmp_path / "run")
    found = LoadResult.load(str(tmp_path / "run" / "load"))
    assert (found.workload, found.rows[0]["dataset_name"]) == ("monday", "monday")
    assert found.rows[0]["max_tokens"] == 9
    assert "rows (5 to 9 tokens)" in " ".join(found.notes)
    assert "The rows' temperature isn't sent" in " ".join(found.notes)


def test_of_several_models_one_can_be_asked(server: str, tmp_path: Path) -> None:
    invoke(server, "--model", "adapter", *ONE_REQUEST, "--run-dir", tmp_path)
    assert LoadResult.load(str(tmp_path / "load")).models == {"one": "adapter"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", ","], "--concurrency ',' is not a list of numbers"),
        (["--concurrency", ""], "concurrency = () is refused"),
        (["--max-tokens", "0"], "max_tokens = 0 is refused: Input should be greater than"),
    ],
)
def test_options_that_would_mean_nothing_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "server", "--server", "a=http://127.0.0.1:9", *arguments])
    assert isinstance(result.exception, (DataError, ServerError))
    assert message in str(result.exception)


def test_the_page_of_a_run_is_left_as_it_is(server: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "report.html").write_text("the run's")
    output = invoke(server, *ONE_REQUEST, "--run-dir", tmp_path)
    assert (tmp_path / "report.html").read_text() == "the run's"
    assert f"`fledge report --run-dir {tmp_path}` adds this to it" in output.replace("\n", "")
    assert LoadResult.load(str(tmp_path / "load")).models == {"one": "fake"}


def test_a_page_of_servers_alone_names_what_they_served(tmp_path: Path) -> None:
    load_result().save(str(tmp_path / "load"))
    result = CliRunner().invoke(app, ["report", "--run-dir", str(tmp_path)])
    assert result.exception is None, result.output
    page = (tmp_path / "report.html").read_text()
    assert "<title>target: eagle3: tokens" in page
    assert "SmolLM2" not in page
