"""summary.json: its fields, and where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from fledge.base.errors import StorageError
from fledge.bench import BenchOptions, BenchResult, Summary, summarise
from fledge.bench.summary import workload_summary
from tests.bench.synthetic import answer_row, bench_result


def test_summary_file_has_the_documented_fields(tmp_path: Path) -> None:
    url = str(tmp_path / "summary.json")
    summarise(bench_result(), {"train": 402.0, "bench": 271.0}).save(url)
    value = json.loads(Path(url).read_text())
    assert value["version"] == 1
    figures = {"prompts", "identical", "near_tie", "different", "tau", "tpot_plain_ms", "tpot_ms", "speedup"}
    for part in (value, value["released"]):
        assert set(part["workloads"]) == {"mixed", "gsm8k"}
        assert all(figures <= set(workload) for workload in part["workloads"].values())
    assert value["plain"]["ms_per_token"] == 11.4
    assert value["plain"]["limit_ms_per_token"] == 8.1
    assert value["plain"]["share_of_limit"] == pytest.approx(8.1 / 11.4)
    assert value["stages"]["train"]["seconds"] == 402.0
    assert value["machine"]["cores"] == 2
    assert value["versions"]["torch"] == "2.13.0"
    assert Summary.load(url) == summarise(bench_result(), {"train": 402.0, "bench": 271.0})


def test_figures_are_medians_of_believed_rows_and_tau_is_over_all_rounds() -> None:
    rows = [
        answer_row(speedup=1.2, tpot_ms=10.0, rounds=10, round_tokens=20),
        answer_row(speedup=1.6, tpot_ms=7.5, rounds=30, round_tokens=90, outcome="near_tie"),
        answer_row(speedup=9.0, tpot_ms=1.0, rounds=10, round_tokens=10, rejected="broken"),
        answer_row(speedup=1.4, tpot_ms=8.5, rounds=10, round_tokens=20, outcome="different"),
    ]
    found = workload_summary(rows)
    assert (found.prompts, found.identical, found.near_tie, found.different, found.rejected) == (
        4,
        2,
        1,
        1,
        1,
    )
    assert found.speedup == median([1.2, 1.6, 1.4])
    assert found.tpot_ms == 8.5
    assert found.tau == pytest.approx(140 / 60)


def test_several_workloads_are_also_summed_up_over_all_their_prompts() -> None:
    result = bench_result()
    found = summarise(result)
    assert found.overall == workload_summary(result.rows("trained"))
    assert found.released is not None
    assert found.released.overall == workload_summary(result.rows("released"))
    assert list(found.lines) == ["mixed", "gsm8k", "all prompts"]
    one = result.model_copy(update={"answers": [row for row in result.answers if row.workload == "mixed"]})
    assert summarise(one).overall is None
    assert list(summarise(one).lines) == ["mixed"]


def test_acceptance_by_depth_is_relative_to_rounds_that_drafted() -> None:
    rows = [
        answer_row(drafted_rounds=10, accepted_by_depth=[6, 2]),
        answer_row(drafted_rounds=30, accepted_by_depth=[14]),
    ]
    assert workload_summary(rows).tau_by_depth == [0.5, 0.05]
    assert workload_summary([answer_row(drafted_rounds=0, accepted_by_depth=[])]).tau_by_depth == []


def test_without_a_released_head_its_part_is_null() -> None:
    value = summarise(bench_result(("trained",))).model_dump()
    assert value["released"] is None
    assert value["head"] == "trained"


def test_result_files_come_back_as_they_were(tmp_path: Path) -> None:
    result = bench_result()
    result.answers[0].category = "with a line\u2028separator"
    result.save(str(tmp_path))
    assert BenchResult.load(str(tmp_path)) == result
    assert len((tmp_path / "answers.jsonl").read_bytes().splitlines()) == len(result.answers)
    (tmp_path / "answers.jsonl").write_text('{"workload": "mixed"}\n')
    with pytest.raises(StorageError, match="run `fledge bench` again"):
        BenchResult.load(str(tmp_path))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        BenchOptions.model_validate({"promts": []})
    assert BenchOptions.model_validate({"concurrency": [1, 2]}).concurrency == (1, 2)
