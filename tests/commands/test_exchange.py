"""Export, import and doctor as commands: what they print, their exit codes, and the hub."""

from __future__ import annotations

import json
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from huggingface_hub import HfApi, constants

from fledge.commands.main import main
from fledge.deploy.exchange import export_head
from fledge.heads import Head
from fledge.heads import checkpoint as checkpoint_module
from fledge.heads.checkpoint import write_head
from fledge.sources import hub as hub_module
from tests.heads.tiny_head import load_tiny_target, random_head


@pytest.fixture
def head(tiny_target_folder: Path, tmp_path: Path) -> Path:
    random_head(load_tiny_target(tiny_target_folder)).save(str(tmp_path / "head"))
    return tmp_path / "head"


def fledge(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["fledge", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_folder_is_named_as_it_is_whatever_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], head: Path, tmp_path: Path
) -> None:
    folder = tmp_path / ("long [b]" * 20)
    assert fledge(monkeypatch, "export", head, folder) == 0
    assert f"head: {folder} (" in capsys.readouterr().out


def test_a_models_folder_is_not_overwritten_by_a_head_but_another_head_is(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    head: Path,
    tiny_target_folder: Path,
    tmp_path: Path,
) -> None:
    model = Path(shutil.copytree(tiny_target_folder, tmp_path / "model"))
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    for command in ("export", "import"):
        assert fledge(monkeypatch, command, head, model) == 2
        assert "would be overwritten; name another folder" in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in model.iterdir()} == before
        for _ in range(2):
            assert fledge(monkeypatch, command, head, tmp_path / command) == 0


def test_export_import_and_doctor_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    head: Path,
    tiny_target_folder: Path,
    tmp_path: Path,
) -> None:
    target = ("--target", tiny_target_folder)
    assert fledge(monkeypatch, "export", head, tmp_path / "spec", "--form", "speculators", *target) == 0
    assert fledge(monkeypatch, "import", tmp_path / "spec", tmp_path / "back", *target) == 0
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (head / "model.safetensors").read_bytes()
    short = ("--max-tokens", 8)
    assert fledge(monkeypatch, "doctor", tiny_target_folder, tmp_path / "back", *short) == 0
    assert "no fault found" in capsys.readouterr().out
    config = json.loads((tmp_path / "back" / "config.json").read_text()) | {"rope_theta": 1e6}
    (tmp_path / "back" / "config.json").write_text(json.dumps(config))
    assert fledge(monkeypatch, "doctor", tiny_target_folder, tmp_path / "back", *short) == 1
    assert "rope: RoPE base 1e+06 (default), the target's is 10000 (default)" in capsys.readouterr().out
    assert fledge(monkeypatch, "doctor", tiny_target_folder, tmp_path / "none") == 2
    assert fledge(monkeypatch, "import", head, tmp_path / "x", "--layers", "one") == 2
    assert "give three numbers such as 1,14,26" in capsys.readouterr().err
    assert fledge(monkeypatch, "import", head, tmp_path / "x", "--layers=-1,2,3") == 2
    assert not (tmp_path / "x").exists()


def test_an_embedding_needs_no_other_weights_of_the_target(
    head: Path, tiny_target_folder: Path, tmp_path: Path
) -> None:
    target = Path(shutil.copytree(tiny_target_folder, tmp_path / "target"))
    weights = safetensors.torch.load_file(target / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if ".layers." not in name}
    safetensors.torch.save_file(kept, target / "model.safetensors", {"format": "pt"})
    write_head(Head.load(str(head)), str(tmp_path / "own"))
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    del config["fledge"]  # what it says of the target's revision
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    made = export_head(str(tmp_path / "own"), str(tmp_path / "eagle"), form="eagle", target=str(target))
    assert made.weights.embedding is not None
    assert torch.equal(made.weights.embedding, kept["model.embed_tokens.weight"].bfloat16())


def test_layers_said_on_import_are_written_in_each_convention(
    monkeypatch: pytest.MonkeyPatch, head: Path, tiny_target_folder: Path, tmp_path: Path
) -> None:
    known = ("--layers", "2,3,5", "--target", tiny_target_folder)
    assert fledge(monkeypatch, "import", head, tmp_path / "other", *known) == 0
    assert Head.load(str(tmp_path / "other")).metadata.feature_layers == (2, 3, 5)
    assert fledge(monkeypatch, "export", tmp_path / "other", tmp_path / "vllm", "--form", "vllm") == 0
    config = json.loads((tmp_path / "vllm" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [3, 4, 6]


@pytest.mark.parametrize("online", [True, False])
def test_a_pickled_head_of_the_hub_is_read_by_its_id(
    monkeypatch: pytest.MonkeyPatch, head: Path, tiny_target_folder: Path, tmp_path: Path, online: bool
) -> None:
    """EAGLE's own are in pytorch_model.bin alone."""
    repository = tmp_path / "cache" / "models--org--eagle"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_bytes((head / "config.json").read_bytes())
    torch.save(safetensors.torch.load_file(head / "model.safetensors"), snapshot / "pytorch_model.bin")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", not online)
    if online:
        monkeypatch.setattr(hub_module, "unreachable_reason", lambda repo_id: "")

        def download(repo_id: str, *, allow_patterns: list[str], **rest: Any) -> str:
            assert any(fnmatch("pytorch_model.bin", pattern) for pattern in allow_patterns)
            return str(snapshot)

        monkeypatch.setattr(hub_module, "snapshot_download", download)
    assert Head.load("org/eagle").config == Head.load(str(head)).config
    assert fledge(monkeypatch, "doctor", tiny_target_folder, "org/eagle", "--max-tokens", 4) == 0


def test_push_uploads_the_whole_folder_in_one_commit_and_a_hub_id_loads(
    monkeypatch: pytest.MonkeyPatch, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub: dict[str, Path] = {}

    def upload(api: HfApi, *, repo_id: str, folder_path: str, **rest: Any) -> SimpleNamespace:
        assert f"uploading to {constants.ENDPOINT}/{repo_id};" in capsys.readouterr().out  # said beforehand
        hub[repo_id] = tmp_path / "hub"
        hub[repo_id].mkdir()
        for file in Path(folder_path).iterdir():
            (hub[repo_id] / file.name).write_bytes(file.read_bytes())
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    monkeypatch.setattr(HfApi, "create_repo", lambda api, repository, **rest: None)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    export_head(str(head), str(tmp_path / "out"), form="sglang", push="org/name")
    assert {p.name for p in hub["org/name"].iterdir()} == {"config.json", "model.safetensors", "README.md"}
    monkeypatch.setattr(checkpoint_module, "hub_folder", lambda repository, also: hub[repository])
    assert Head.load("org/name").config == Head.load(str(head)).config
