"""GGUF files that aren't one model alone: parts, companions, several quantisations; and named templates."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import pytest
import torch

from fledge.base.errors import HeadError, TargetError
from fledge.heads import Head
from fledge.target import Target, resolve_target
from fledge.target.resolve import config_place
from tests.server.taught import TEMPLATES
from tests.sources import tiny_gguf
from tests.sources.tiny_gguf import write_gguf
from tests.tiny import CHATML


@pytest.fixture
def parts(original_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A model in several parts, as llama.cpp's converter splits it."""

    class Split(gguf.GGUFWriter):  # type: ignore[misc]
        def __init__(self, path: Path, architecture: str) -> None:
            super().__init__(path, architecture, split_max_tensors=20)

    monkeypatch.setattr(tiny_gguf, "GGUFWriter", Split)
    folder = tmp_path / "model"
    folder.mkdir()
    write_gguf(original_folder, folder / "m.gguf")
    return sorted(folder.glob("*.gguf"))


def refusal(spec: Path, cache: Path) -> str:
    with pytest.raises(TargetError) as caught:
        resolve_target(str(spec), cache)
    assert not list((cache / "targets").glob("*/config.json"))
    return str(caught.value)


def test_a_model_in_parts_is_read_as_one(parts: list[Path], gguf_file: Path, tmp_path: Path) -> None:
    assert len(parts) > 1
    whole = Target.load(str(gguf_file), cache_dir=tmp_path, backend="torch")
    for spec in (parts[0], parts[1], parts[0].parent):
        target = Target.load(str(spec), cache_dir=tmp_path, backend="torch")
        assert (target.name, target.revision) == ("m", whole.revision)
        assert torch.equal(target.weights.layers[-1].down, whole.weights.layers[-1].down)
    assert config_place(str(parts[1]), tmp_path) == str(target.folder)


def test_a_missing_part_is_named(parts: list[Path], tmp_path: Path) -> None:
    parts[-1].unlink()
    for spec in (parts[0], parts[0].parent):
        assert f"{parts[-1].name} is missing beside it" in refusal(spec, tmp_path)


def test_a_renamed_part_is_known_by_its_metadata(parts: list[Path], tmp_path: Path) -> None:
    renamed = parts[0].rename(tmp_path / "model.gguf")
    said = refusal(renamed, tmp_path)
    assert f"one of {len(parts)} parts" in said
    assert f"NAME-00001-of-{len(parts):05d}.gguf" in said


def test_a_folder_with_a_companion_uses_the_model(
    gguf_file: Path, original_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(gguf_file, folder / "model.gguf")
    for name, architecture in (("eagle3-model.gguf", "eagle3"), ("mmproj-model.gguf", "clip")):
        write_gguf(original_folder, folder / name, architecture=architecture)
    assert resolve_target(str(folder), tmp_path).name == "model"
    (folder / "model.gguf").unlink()
    assert "without the model" in refusal(folder, tmp_path / "other")


def test_of_several_quantisations_one_has_to_be_named(gguf_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf"):
        shutil.copy(gguf_file, folder / name)
    assert "name one of them, m-Q4_K_M.gguf, m-Q8_0.gguf" in refusal(folder, tmp_path)


def test_a_draft_head_in_gguf_is_called_one(original_folder: Path, tmp_path: Path) -> None:
    head = write_gguf(original_folder, tmp_path / "head.gguf", architecture="eagle3")
    assert "is an EAGLE-3 draft head, not a model" in refusal(head, tmp_path)
    with pytest.raises(HeadError, match="another structure"):
        Head.load(str(head))
    with pytest.raises(HeadError, match="there is no such folder"):
        Head.load(str(tmp_path / "nope"))


def test_named_templates_of_a_gguf_file_serve_requests_with_tools(
    original_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": TEMPLATES["hermes"]},
    ]

    class Named(gguf.GGUFWriter):  # type: ignore[misc]
        def add_chat_template(self, value: object) -> None:
            super().add_chat_template(templates)

    monkeypatch.setattr(tiny_gguf, "GGUFWriter", Named)
    target = Target.load(str(write_gguf(original_folder, tmp_path / "named.gguf")), cache_dir=tmp_path)
    assert target.chat.takes_tools
    plain = Target.load(str(original_folder), cache_dir=tmp_path)
    question = [{"role": "user", "content": "Why?"}]
    assert target.chat.prompt_ids(question) == plain.chat.prompt_ids(question)
