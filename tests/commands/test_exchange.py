"""Export, import and doctor as commands: what they print, their exit codes, and the hub."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from huggingface_hub import HfApi, constants

from fledge.deploy import inspection
from fledge.deploy.exchange import export_head
from fledge.heads import Head
from fledge.heads import checkpoint as checkpoint_module
from fledge.heads.checkpoint import write_head
from fledge.sources import hub as hub_module
from tests.commands.command import Fledge
from tests.heads.tiny_head import load_tiny_target, random_head


@pytest.fixture
def head(tiny_target_folder: Path, tmp_path: Path) -> Path:
    random_head(load_tiny_target(tiny_target_folder)).save(str(tmp_path / "head"))
    return tmp_path / "head"


def test_a_folder_is_named_as_it_is_whatever_its_name(fledge: Fledge, head: Path, tmp_path: Path) -> None:
    folder = tmp_path / ("long [b]" * 20)
    assert f"head: {folder} (" in fledge("export", head, folder)


def test_a_models_folder_is_not_overwritten_by_a_head_but_another_head_is(
    fledge: Fledge, head: Path, tiny_target_folder: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_target_folder, tmp_path / "model"))
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    for command in ("export", "import"):
        assert "would be overwritten; name another folder" in fledge.error(command, head, model)
        assert {path.name: path.read_bytes() for path in model.iterdir()} == before
        for _ in range(2):
            fledge(command, head, tmp_path / command)


def test_export_import_and_doctor_from_the_command_line(
    fledge: Fledge, head: Path, tiny_target_folder: Path, tmp_path: Path
) -> None:
    target = ("--target", tiny_target_folder)
    fledge("export", head, tmp_path / "spec", "--form", "speculators", *target)
    fledge("import", tmp_path / "spec", tmp_path / "back", *target)
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (head / "model.safetensors").read_bytes()
    examined = ("doctor", tiny_target_folder, tmp_path / "back", "--max-tokens", "8")
    assert "no fault found" in fledge(*examined)
    config = json.loads((tmp_path / "back" / "config.json").read_text()) | {"rope_theta": 1e6}
    (tmp_path / "back" / "config.json").write_text(json.dumps(config))
    told = fledge(*examined, expect=1)
    assert "rope: RoPE base 1e+06 (default), the target's is 10000 (default)" in told
    fledge.error("doctor", tiny_target_folder, tmp_path / "none")
    wanted = ("import", head, tmp_path / "x")
    assert "give three numbers such as 1,14,26" in fledge.error(*wanted, "--layers", "one")
    fledge.error(*wanted, "--layers=-1,2,3")
    assert not (tmp_path / "x").exists()


def test_a_target_is_examined_without_a_head(
    fledge: Fledge, head: Path, tiny_target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = fledge("doctor", tiny_target_folder)
    assert "✓ weights: " in told
    assert f"! head: none ships for it\n  make one: fledge make-head {tiny_target_folder}" in told
    assert f"serve it: fledge serve {tiny_target_folder}" in told
    shutil.copytree(head, tmp_path / "runs" / tiny_target_folder.name / "head")
    kept = tmp_path / "runs" / tiny_target_folder.name / "head"
    assert f"✓ head: runs/{tiny_target_folder.name}/head" in fledge("doctor", tiny_target_folder)
    (kept / "config.json").write_text('{"broken')
    told = fledge("doctor", tiny_target_folder, "--quantization", "q4_0")
    assert f"! head: none ships for it, and runs/{tiny_target_folder.name}/head doesn't fit (" in told
    assert f"fledge make-head {tiny_target_folder} target.quantization=q4_0" in told
    assert f"fledge serve {tiny_target_folder} --quantization q4_0" in told


def test_a_target_larger_than_memory_is_broken_here(
    fledge: Fledge, tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "free_memory", lambda device: 1000)
    told = fledge("doctor", tiny_target_folder, expect=1)
    assert (
        "(bfloat16); 1.0 kB are free on cpu\n  free memory, or take a smaller model or quantisation" in told
    )
    assert "fledge serve" not in told


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
    fledge: Fledge, head: Path, tiny_target_folder: Path, tmp_path: Path
) -> None:
    fledge("import", head, tmp_path / "other", "--layers", "2,3,5", "--target", tiny_target_folder)
    assert Head.load(str(tmp_path / "other")).metadata.feature_layers == (2, 3, 5)
    fledge("export", tmp_path / "other", tmp_path / "vllm", "--form", "vllm")
    config = json.loads((tmp_path / "vllm" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [3, 4, 6]


@pytest.mark.parametrize("online", [True, False])
def test_a_pickled_head_of_the_hub_is_read_by_its_id(
    fledge: Fledge,
    monkeypatch: pytest.MonkeyPatch,
    head: Path,
    tiny_target_folder: Path,
    tmp_path: Path,
    online: bool,
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
    fledge("doctor", tiny_target_folder, "org/eagle", "--max-tokens", "4")


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
