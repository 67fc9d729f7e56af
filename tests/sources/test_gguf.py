"""GGUF files as targets: converted once, to the checkpoint they were made from, or refused."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fledge.base.errors import StorageError, TargetError
from fledge.target import Target, resolve_target
from tests.sources.tiny_gguf import write_gguf
from tests.tiny import TinyShape, save_tiny_target


def test_a_gguf_file_becomes_the_checkpoint_it_was_made_from(
    gguf_file: Path, original_folder: Path, tmp_path: Path
) -> None:
    target = Target.load(str(gguf_file), cache_dir=tmp_path, backend="torch")
    original = Target.load(str(original_folder), cache_dir=tmp_path, backend="torch")
    assert target.name == "tiny-model"
    assert target.config == original.config
    assert torch.equal(target.weights.layers[3].qkv, original.weights.layers[3].qkv)
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    assert target.chat.prompt_ids(question) == original.chat.prompt_ids(question)
    assert target.chat.turn_end_ids == original.chat.turn_end_ids
    assert all(t.dtype == torch.bfloat16 for t in load_file(target.folder / "model.safetensors").values())


def test_a_conversion_is_announced_and_shows_no_bar_of_transformers(
    gguf_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "fledge.note"):  # as the command line sets it
        resolve_target(str(gguf_file), tmp_path)
    assert f"converting {gguf_file} to bf16 safetensors" in caplog.text
    assert capfd.readouterr().err == ""


def test_a_gguf_file_is_converted_once_by_several_at_once(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.sources import gguf as gguf_module

    made: list[Path] = []
    convert = gguf_module._convert

    def counting(file: Path, folder: Path) -> None:
        made.append(folder)
        convert(file, folder)

    monkeypatch.setattr(gguf_module, "_convert", counting)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: resolve_target(str(gguf_file), tmp_path), range(3)))
    assert len(made) == 1
    assert len({r.folder for r in found}) == 1
    assert [p.name for p in (tmp_path / "targets").glob(".making-*")] == []


def test_an_interrupted_conversion_leaves_nothing_and_starts_again(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.sources import gguf as gguf_module

    def full_disk(file: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    killed = (
        tmp_path / "targets" / f".making-{resolve_target(str(gguf_file), tmp_path / 'other').folder.name}-x"
    )
    killed.mkdir(parents=True)  # what a killed process leaves
    with monkeypatch.context() as patch:
        patch.setattr(gguf_module, "_convert", full_disk)
        with pytest.raises(StorageError, match=r"No space left on device.*free some disk space"):
            resolve_target(str(gguf_file), tmp_path)
    assert [p for p in (tmp_path / "targets").iterdir() if p.is_dir()] == []
    assert resolve_target(str(gguf_file), tmp_path).folder.exists()


def test_the_window_in_a_gguf_file_is_kept(tmp_path: Path) -> None:
    shape = TinyShape(head_dim=16, tied=False)
    phi = save_tiny_target(tmp_path / "phi", "Phi3ForCausalLM", shape=shape, sliding_window=256)
    config = resolve_target(
        str(write_gguf(phi, tmp_path / "phi.gguf", architecture="phi3", window=256)), tmp_path
    ).config
    assert config == resolve_target(str(phi), tmp_path).config
    assert (config.window, config.max_position_embeddings) == (256, 2048)


def test_gguf_files_that_cannot_be_converted_are_clear_errors(original_folder: Path, tmp_path: Path) -> None:
    for name in ("rope_freqs.weight", "rope_factors_long.weight"):  # Llama 3.1's and Phi-3's
        scaled = write_gguf(original_folder, tmp_path / "scaled.gguf", also=[name])
        with pytest.raises(TargetError, match="scales its RoPE"):
            resolve_target(str(scaled), tmp_path)
    biased = write_gguf(original_folder, tmp_path / "biased.gguf", also=["blk.0.attn_q.bias"])
    with pytest.raises(TargetError, match="as another model, without its biases"):
        resolve_target(str(biased), tmp_path)
    other = write_gguf(original_folder, tmp_path / "other.gguf", architecture="bloom")
    with pytest.raises(TargetError, match="LlamaForCausalLM"):
        resolve_target(str(other), tmp_path)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(scaled.read_bytes()[:100])
    with pytest.raises(TargetError, match="isn't a whole GGUF file"):
        resolve_target(str(broken), tmp_path)
