"""The ratios' parts on the tiny target: what is compared, and that nothing stays behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks import readme_numbers
from benchmarks.ratios import kv_reads
from benchmarks.ratios.__main__ import main
from benchmarks.ratios.line import Ratio, Ratios
from benchmarks.ratios.parts import PARTS, Bench, RatioOptions, measure_ratios, wanted_parts
from fledge.attention import reference_attention
from fledge.base.errors import DataError
from fledge.bench.machine import machine_facts
from fledge.bench.statistics import Interval
from fledge.engine.rounds import graphs
from fledge.heads import Head
from fledge.target import Target
from tests.commands.command import Fledge
from tests.engine.op_recorder import OpRecorder, PaddedAttention, act_like_a_gpu

TINY = RatioOptions(
    concurrency=(1, 2), repeats=2, max_tokens=6, prompts=4, long_prompt=40, contexts=(16,), rows=(2, 4)
)


def measured(target: Target, head: Head, *parts: str) -> list[Ratio]:
    shown: list[Ratio] = []
    found = measure_ratios(Bench(target, head, TINY), wanted_parts(parts, gpu=False), shown.append)
    assert found.lines == shown
    assert found.target == target.name
    return shown


@pytest.mark.parametrize(
    ("part", "lines"),
    [
        ("levels", 4),
        ("ttft", 2),
        ("sampled", 2),
        ("structured", 1),
        ("context", 3),
        ("neighbour", 2),
    ],
)
def test_every_part_gives_its_lines(target: Target, head: Head, part: str, lines: int) -> None:
    if part == "structured":
        pytest.importorskip("llguidance")
    found = measured(target, head, part)
    assert len(found) == lines
    for line in found:
        assert len(line.cells) == 5
        assert line.base >= 0
        assert line.ratio is None or (math.isfinite(line.ratio.value) and line.ratio.value > 0)


def test_without_llguidance_that_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.ratios.parts.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "fledge\[structured\]"'):
        wanted_parts(["levels", "structured"], gpu=False)


def test_graphs_are_compared_on_gpus_only() -> None:
    with pytest.raises(DataError, match="graphs is measured on a GPU; name one with --device"):
        wanted_parts(["graphs"], gpu=False)
    assert wanted_parts([], gpu=True) == [*wanted_parts([], gpu=False), "overlap", "graphs", "attention"]


@pytest.mark.slow
def test_graphs_are_compared_at_every_level(
    target: Target, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    act_like_a_gpu(monkeypatch)
    monkeypatch.setattr(graphs, "_MOST", 8)
    lines = list(Bench(target, head, TINY.changed(repeats=1)).graphs())
    assert [line.what for line in lines] == [
        f"throughput, {level} at once, {name}: CUDA graphs on over off"
        for name in ("plain", "head")
        for level in (1, 8)
    ]


def test_attention_reads_every_prefix_once_per_layer_and_is_what_attention_is(
    target: Target,
) -> None:
    found = kv_reads.make_pass(target, requests=3, rows=2, context=20, least_bytes=1)
    config = target.config
    assert found.read_bytes == 3 * 20 * 2 * config.num_kv_heads * config.head_dim * 4
    ((keys, values),) = found.layers
    expected = reference_attention(found.query, keys, values, found.batch, target.decoder.page_size)
    torch.testing.assert_close(found.run(), [expected])
    assert len(kv_reads.make_pass(target, 3, 2, 20, least_bytes=found.read_bytes + 1).layers) == 2


def test_attentions_reads_are_compared_with_a_copy(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_reads, "_BYTES", 1)
    monkeypatch.setattr(kv_reads, "paged_attention", PaddedAttention)
    lines = list(kv_reads.kv_reads(target, OpRecorder(target.decoder.device), (16, 40), 1))
    assert len(lines) == 12
    assert lines[3].what == "attention's reads over a copy's, 8 at once, 16 rows each, context 16"
    assert all(line.base > 0 and line.other > 0 for line in lines)


def test_levels_compare_the_heads_with_plain_decode_and_say_what_a_chart_needs(
    target: Target, head: Head
) -> None:
    names = ["head", "poor head", "random head"]
    lines = list(Bench(target, head, TINY, poor=head).levels())
    assert [line.what for line in lines] == [
        f"throughput, {level} at once: {name} over plain" for level in (1, 2) for name in names
    ]
    assert [(line.level, line.head) for line in lines] == [
        (level, name) for level in (1, 2) for name in names
    ]
    assert all(line.ratio is not None and line.ratio.count == 2 for line in lines)
    options = {"target": "t", "date": "", "machine": machine_facts(), "versions": {}}
    assert list(Ratios(lines=lines, **options).gains) == names
    sampled = measured(target, head, "sampled")
    assert Ratios(lines=sampled, **options).gains == {}  # another load: no part of the chart


def test_the_busy_neighbour_is_gone_afterwards(target: Target, head: Head) -> None:
    list(Bench(target, head, TINY.changed(prompts=2)).neighbour())
    assert not [child for child in psutil.Process().children() if "while True" in " ".join(child.cmdline())]


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(DataError, match=r"there is no part 'tfft'; choose from levels, ttft"):
        wanted_parts(["levels", "tfft"], gpu=False)
    assert next(iter(PARTS)) == "levels"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats is 0"),
        ({"concurrency": (1, 0)}, r"concurrency\.1 is 0"),
        ({"concurrency": ()}, r"concurrency is \(\)"),
        ({"max_tokens": 1}, "max_tokens is 1; use 2 or more"),
    ],
)
def test_options_that_measure_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        RatioOptions(**options)


def test_a_saved_result_becomes_the_table_of_a_page(target: Target, head: Head, tmp_path: Path) -> None:
    found = measure_ratios(Bench(target, head, TINY), ["ttft"], lambda _: None, "python -m benchmarks.ratios")
    line = Ratio(
        what="first", base=2.0, other=3.0, unit="ms", ratio=Interval(1.5, 1.4, 1.61, 6), note="tau 2.00"
    )
    found = found.model_copy(update={"lines": [line, *found.lines]})
    found.save(str(tmp_path / "ratios.json"))
    assert Ratios.model_validate_json((tmp_path / "ratios.json").read_text("utf-8")) == found
    page = readme_numbers.filled("<!-- measured: ratios.json -->\n<!-- /measured -->\n", tmp_path)
    assert "| first | 2 ms | 3 ms | 1.500 (1.400 to 1.610) | tau 2.00 |" in page


def test_what_is_to_be_measured_is_checked_before_the_target_is_sought(
    instrument: Callable[[Callable[..., Any]], Fledge], tmp_path: Path
) -> None:
    error = instrument(main).error
    arguments = ("--target", "/no/such/target", "--output", tmp_path / "found.json")
    assert "repeats is 0; use 1 or more" in error(*arguments, "--repeats", "0")
    assert "there is no part 'tfft'" in error(*arguments, "--only", "levels,tfft")
    assert "graphs is measured on a GPU" in error(*arguments, "--only", "graphs")
    (tmp_path / "file").write_text("")
    assert f"can't write {tmp_path}/file/" in error("--output", tmp_path / "file" / "x")
