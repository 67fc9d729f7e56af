"""Files of every format, whole, in part and damaged: a bad row costs that row."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fledge.base import storage
from fledge.base.errors import DataError
from fledge.data.sources import Record, SourceOptions, Unusable, open_source
from fledge.data.sources import files as files_module
from fledge.data.sources.files import FileRows, split_lines

ROWS = [
    {"prompt": f"question {number}?", "category": "code" if number % 2 else "chat"} for number in range(10)
]
PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def write(folder: Path, name: str, rows: list[dict[str, Any]] = ROWS) -> Path:
    path = folder / name
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if name.endswith(".jsonl"):
        path.write_text(lines)
    elif path.suffix in PACKED:
        path.write_bytes(PACKED[path.suffix](lines.encode()))
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows, indent=1))
    elif name.endswith(".csv"):
        path.write_text("prompt,category\n" + "".join(f'"{r["prompt"]}",{r["category"]}\n' for r in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


def source(path: object, **options: Any) -> Any:
    return open_source(SourceOptions(path=str(path), licence="own", **options))


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "a.csv", "a.parquet", *(f"a.jsonl{packed}" for packed in PACKED)]
)
def test_every_format_gives_the_same_records_from_any_row_on(tmp_path: Path, name: str) -> None:
    opened = source(write(tmp_path, name))
    records = list(opened.records())
    assert records == [Record(n, (row["prompt"],), None, row["category"]) for n, row in enumerate(ROWS)]
    for skip in (1, 3, 9, 10, 11):
        assert list(opened.records(skip)) == records[skip:]


def test_a_folder_is_its_files_in_order_and_a_glob_its_matches(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.parquet", "c.csv", ".hidden.jsonl"):
        write(tmp_path, name)
    (tmp_path / "notes.md").write_text("no data")
    found = list(source(tmp_path).records())
    assert len(found) == 30
    assert [record.row for record in found] == list(range(30))
    assert list(source(tmp_path).records(13)) == found[13:]
    assert len(list(source(tmp_path / "*.jsonl").records())) == 10
    assert len(list(source(tmp_path, limit=12).records())) == 12
    assert len(list(source(tmp_path, limit=12).records(10))) == 2


def test_two_colons_in_a_path_are_part_of_its_name(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", ROWS[:1])
    (tmp_path / "a.jsonl::b").mkdir()
    found = source(write(tmp_path / "a.jsonl::b", "c::d.jsonl", ROWS[:3]))
    assert len(list(found.records())) == 3


def test_damaged_lines_are_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    good = [json.dumps(row).encode() for row in ROWS]
    bad = [b"{broken", b'{"prompt": "\xff\xfe"}', b"[" * 100_000, b'{"prompt": 3}', b""]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([*good[:5], *bad, *good[5:]]))
    found = list(source(tmp_path / "a.jsonl").records())
    assert [r.reason for r in found if isinstance(r, Unusable)] == [
        "not_json",
        "encoding",
        "not_json",
        "shape",
    ]
    assert [r.turns[0] for r in found if isinstance(r, Record)] == [row["prompt"] for row in ROWS]


def test_half_an_emoji_costs_its_row(tmp_path: Path) -> None:
    lines = [
        r'{"prompt": "cut \ud83d here"}',
        r'{"prompt": "a", "category": "\udc00"}',
        r'{"prompt": "whole \ud83d\ude00"}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = list(source(tmp_path / "a.jsonl").records())
    assert found[:2] == [Unusable(0, "encoding"), Unusable(1, "encoding")]
    assert found[2] == Record(2, ("whole 😀",), None, "general")


def test_a_line_too_long_is_read_past_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_CHUNK", 64)
    data = b"short\n" + b"x" * 1000 + b"\n" + b"last"
    assert list(split_lines(io.BytesIO(data), longest=200)) == [b"short\n", None, b"last"]
    assert list(split_lines(io.BytesIO(b"x" * 1000), longest=200)) == [None]
    assert list(split_lines(io.BytesIO(b"a\n\nb\n"), longest=200)) == [b"a\n", b"\n", b"b\n"]


def test_a_damaged_array_keeps_what_came_before_and_no_text_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS).replace('"question 8?"', "question"))
    found = list(source(path).records())
    assert found[-1] == Unusable(8, "not_json")
    assert len(found) == 9
    assert "a.json is damaged after its row 8" in caplog.text
    assert "question" not in caplog.text


@pytest.mark.parametrize("number", [2**64 - 1, 10**30, Decimal("1e400")])
def test_a_large_number_in_an_array_costs_nothing(tmp_path: Path, number: object) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        "\ufeff" + json.dumps(ROWS, indent=1).replace('"question 8?"', f'"question 8?", "id": {number}')
    )
    assert [found.turns for found in source(path).records()] == [(row["prompt"],) for row in ROWS]


def test_lines_that_are_lists_are_rows_and_not_one_array(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n" + "\n".join(json.dumps([f"first {n}", f"second {n}"]) for n in range(3)))
    opened = source(path)
    assert opened.shape == "turns"
    assert list(opened.records()) == [
        Record(n, (f"first {n}", f"second {n}"), None, "general") for n in range(3)
    ]
    path.write_text(json.dumps(ROWS))  # one line: an array of rows after all
    assert len(list(source(path).records())) == len(ROWS)


def test_lines_may_end_as_on_old_macs(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'prompt,category\r"two\rlines, one cell",x\rlast one,z\r')
    assert list(source(path).records()) == [
        Record(0, ("two\rlines, one cell",), None, "x"),
        Record(1, ("last one",), None, "z"),
    ]


def test_a_parquet_text_that_is_no_utf8_costs_its_row_and_a_strange_time_nothing(tmp_path: Path) -> None:
    texts = pa.array([b"one", b"broken \xff", b"three"], pa.binary()).view(pa.string())
    times = pa.array([1, 2, 10**15], pa.timestamp("ms"))  # the last is in the year 33,658
    pq.write_table(pa.table({"prompt": texts, "created": times}), tmp_path / "a.parquet")
    assert list(source(tmp_path / "a.parquet").records()) == [
        Record(0, ("one",), None, "general"),
        Unusable(1, "encoding"),
        Record(2, ("three",), None, "general"),
    ]


def test_objects_over_several_lines_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("\ufeff" + "\n".join(json.dumps(row, indent=2) for row in ROWS))
    assert list(source(path).records()) == [
        Record(n, (row["prompt"],), None, row["category"]) for n, row in enumerate(ROWS)
    ]
    path.write_text(json.dumps(ROWS[0], indent=2) + "\n" + json.dumps(ROWS[1], indent=2)[:-9])
    assert list(source(path).records())[1:] == [Unusable(1, "not_json")]


def test_cells_may_be_separated_by_semicolons(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"prompt";category\n"One, two; or three?";x\n')
    assert list(source(tmp_path / "a.csv").records()) == [Record(0, ("One, two; or three?",), None, "x")]


def test_damaged_csv_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'prompt,category\n"two\nlines",x\nonly one\n\xff\xfe,y\nlast one,z\n')
    found = list(source(path).records())
    assert [r.turns[0] if isinstance(r, Record) else r.reason for r in found] == [
        "two\nlines", "columns", "encoding", "last one",
    ]  # fmt: skip


def test_cells_with_json_hold_conversations(tmp_path: Path) -> None:
    cell = json.dumps([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "x"}]).replace('"', '""')
    (tmp_path / "a.csv").write_text(f'id,conversations\n1,"{cell}"\n')
    opened = source(tmp_path / "a.csv")
    assert opened.shape == "sharegpt"
    assert [record.turns for record in opened.records()] == [("Hi",)]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", "".encode("utf-16") + "x".encode("utf-16"), "UTF-16; save it as UTF-8"),
        ("a.xlsx", b"PK", "can't tell the format"),
        ("a.parquet", b"not parquet at all", r"a\.parquet can't be read .*; fix or replace it"),
        ("a.jsonl.gz", b"not packed at all", r"a\.jsonl\.gz can't be read"),
        *(
            (f"a.jsonl{suffix}", pack(random.Random(0).randbytes(9000))[:4000], rf"a\.jsonl\{suffix} can't be read")
            for suffix, pack in PACKED.items()
        ),
        ("a.csv", b"", "no header"),
        ("a.csv", b"prompt,prompt\nx,y\n", "two columns prompt; give them different names"),
        ("a.jsonl", b"", "is empty; put prompts into it"),
        ("a.jsonl", b"{bad\n{worse\n", r"none of the first 2 rows can be read \(not_json\)"),
        ("a.jsonl", b'{"secret": 1}\n', r"no known shape \(columns secret\).*set the source's `shape`"),
    ],
)  # fmt: skip
def test_unusable_files_are_one_clear_error(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        list(source(tmp_path / name).records())


def test_a_field_no_row_has_is_told_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no known shape \(columns prompt, category\)"):
        source(write(tmp_path, "a.jsonl"), field="promt")


def test_a_files_own_name_says_what_separates_its_cells(tmp_path: Path) -> None:
    folder = tmp_path / "from.tsv.zip"
    folder.mkdir()
    (folder / "A.TSV").write_text("prompt\tcategory\nWhy?\tx\n")
    (folder / "b.csv").write_text("prompt,category\nHow?,y\n")
    assert list(source(folder).records()) == [
        Record(0, ("Why?",), None, "x"),
        Record(1, ("How?",), None, "y"),
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.jsonl has no files"):
        source(tmp_path / "absent.jsonl")


def test_system_prompts_are_kept_only_when_asked_for(tmp_path: Path) -> None:
    row = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]}
    path = write(tmp_path, "a.jsonl", [row])
    assert [record.system for record in source(path).records()] == [None]
    assert [record.system for record in source(path, system=True).records()] == ["S"]


def test_a_forced_shape_a_field_and_a_category(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", [{"ask": "Q", "text": "no", "category": "x"}])
    [record] = source(path, field="ask", category="mine").records()
    assert record == Record(0, ("Q",), None, "mine")
    [record] = source(path, shape="sharegpt").records()
    assert record == Unusable(0, "shape")


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl")
    before = FileRows(str(path)).digest()
    assert FileRows(str(path)).digest() == before
    path.write_text(path.read_text().replace("question 9", "question 8"))
    assert FileRows(str(path)).digest() != before


@pytest.mark.parametrize("place", ["file", "memory"])
def test_a_name_masked_in_the_middle_of_a_large_file_changes_the_digest(tmp_path: Path, place: str) -> None:
    filler = [{"prompt": "x" * 2**19}] * 5  # the file's first MiB and its last one stay what they are
    whole = write(tmp_path, "a.jsonl", [*filler, {"prompt": "Who is Martha Klein?"}, *filler]).read_bytes()
    url = {"file": str(tmp_path / "b.jsonl"), "memory": "memory://masked/b.jsonl"}[place]
    storage.write_atomic(url, whole)
    before = FileRows(url).digest()
    storage.write_atomic(url, whole.replace(b"Martha Klein", b"XXXXXX XXXXX"))
    assert FileRows(url).digest() != before
