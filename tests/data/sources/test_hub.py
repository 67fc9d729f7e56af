"""Hugging Face data sets, from a local folder: streamed, licensed, resumable."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fledge.base.errors import DataError
from fledge.data.sources import SourceOptions, open_source


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rows = [
        {"conversations": [{"from": "human", "value": f"question {n}?"}, {"from": "gpt", "value": "FOREIGN"}]}
        for n in range(7)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_data_set_is_streamed_from_any_row_on(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    source = open_source(SourceOptions(kind="dataset", path=str(dataset), licence="mit"))
    assert source.shape == "sharegpt"
    records = list(source.records())
    assert [record.turns for record in records] == [(f"question {n}?",) for n in range(7)]
    assert list(source.records(4)) == records[4:]
    assert (
        source.digest()
        == open_source(SourceOptions(kind="dataset", path=str(dataset), licence="mit")).digest()
    )


def test_another_content_of_the_same_folder_is_another_data_set(dataset: Path) -> None:
    pytest.importorskip("datasets")
    options = SourceOptions(kind="dataset", path=str(dataset), licence="mit")
    before = open_source(options).digest()
    file = dataset / "train.jsonl"
    file.write_text(file.read_text().replace("question 3", "question 8"))
    assert open_source(options).digest() != before


def test_a_data_set_saved_to_disk_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"prompt": [f"question {n}?" for n in range(7)]})
    rows.save_to_disk(str(tmp_path / "saved"))
    source = open_source(SourceOptions(kind="dataset", path=str(tmp_path / "saved"), licence="mit"))
    assert [record.turns for record in source.records(4)] == [(f"question {n}?",) for n in range(4, 7)]


def test_a_data_set_without_a_licence_is_refused(dataset: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match="no declared terms"):
        open_source(SourceOptions(kind="dataset", path=str(dataset)))


def test_an_absent_data_set_is_one_clear_error(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match=r"can't load the data set .*absent"):
        open_source(SourceOptions(kind="dataset", path=str(tmp_path / "absent"), licence="mit"))


def test_without_the_package_the_error_says_what_to_install(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'fledge\[datasets\]'"):
        open_source(SourceOptions(kind="dataset", path=str(dataset), licence="mit"))
