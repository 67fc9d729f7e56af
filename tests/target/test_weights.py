"""Reading weights: shards, fused order, and damaged folders."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fledge.base.errors import TargetError
from fledge.sources.files import weight_files
from fledge.target import DecoderConfig
from tests.target.loading import weights_of
from tests.tiny import TinyShape, save_tiny_target


def test_shards_read_as_the_single_file(tmp_path: Path) -> None:
    single = save_tiny_target(tmp_path / "single", shape=TinyShape(tied=False))
    sharded = save_tiny_target(tmp_path / "sharded", shape=TinyShape(tied=False), max_shard_size="100KB")
    assert len(weight_files(sharded)) > 1
    config = DecoderConfig.from_folder(single)
    one, many = (weights_of(folder, torch.bfloat16, config) for folder in (single, sharded))
    assert torch.equal(one.lm_head, many.lm_head)
    assert all(torch.equal(a.qkv, b.qkv) for a, b in zip(one.layers, many.layers, strict=True))


def test_a_loop_over_the_layers_holds_one_at_a_time(tiny_target_folder: Path) -> None:
    """All layers beside their packed copies would take twice a model's memory while it is loaded."""
    weights = weights_of(tiny_target_folder)
    seen: list[weakref.ref[torch.Tensor]] = []
    for layer in weights.layers:
        assert sum(one() is not None for one in seen) <= 1  # the last one, until `layer` is bound again
        seen.append(weakref.ref(layer.qkv))
    assert len(seen) == len(weights.layers) == 8
    assert torch.equal(weights.layers[-1].qkv, weights.layers[7].qkv)
    assert len(weights.layers[2:4]) == 2


def test_fused_rows_are_query_key_value_and_gate_up(tiny_target_folder: Path) -> None:
    raw = load_file(tiny_target_folder / "model.safetensors")
    weights = weights_of(tiny_target_folder)
    names = [f"model.layers.2.self_attn.{n}_proj.weight" for n in "qkv"]
    assert torch.equal(weights.layers[2].qkv, torch.cat([raw[n] for n in names]))
    names = [f"model.layers.2.mlp.{n}_proj.weight" for n in ("gate", "up")]
    assert torch.equal(weights.layers[2].gate_up, torch.cat([raw[n] for n in names]))
    assert weights.lm_head is weights.embedding


def test_a_tied_lm_head_that_differs_is_refused(tmp_path: Path) -> None:
    """Transformers 5 takes one of them, vLLM and SGLang the other."""
    folder = save_tiny_target(tmp_path)
    config, file = DecoderConfig.from_folder(folder), folder / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, file, {"format": "pt"})
    weights = weights_of(folder, torch.bfloat16, config)
    assert weights.lm_head is weights.embedding
    save_file({**tensors, "lm_head.weight": embedding * 2}, file, {"format": "pt"})
    with pytest.raises(TargetError, match="ties lm_head to the embedding"):
        weights_of(folder, torch.bfloat16, config)


def test_weights_in_8_bits_are_refused_not_taken_for_numbers(tmp_path: Path) -> None:
    """Checkpoints of NVIDIA's ModelOpt say so in a file of their own, not in config.json."""
    folder = save_tiny_target(tmp_path)
    config, file = DecoderConfig.from_folder(folder), folder / "model.safetensors"
    scaled = {n: t.to(torch.float8_e4m3fn) if "proj" in n else t for n, t in load_file(file).items()}
    save_file(scaled, file, {"format": "pt"})
    with pytest.raises(TargetError, match=r"quantised, float8_e4m3fn"):
        list(weights_of(folder, torch.bfloat16, config).layers)


def test_weights_are_cast_to_the_wanted_dtype(tiny_target_folder: Path) -> None:
    config = DecoderConfig.from_folder(tiny_target_folder)
    weights = weights_of(tiny_target_folder, torch.float32, config)
    assert weights.embedding.dtype == weights.layers[0].down.dtype == torch.float32


def test_damaged_folders_are_clear_errors(tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path)
    config, file = DecoderConfig.from_folder(folder), folder / "model.safetensors"
    tensors, whole = load_file(file), file.read_bytes()

    def load() -> None:
        list(weights_of(folder, torch.bfloat16, config).layers)

    save_file({n: t for n, t in tensors.items() if n != "model.norm.weight"}, file)
    with pytest.raises(TargetError, match=r"no tensor model\.norm\.weight"):
        load()
    save_file({**tensors, "model.norm.weight": torch.zeros(3)}, file)
    with pytest.raises(TargetError, match=r"shape \(3,\)"):
        load()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TargetError, match="isn't a whole safetensors file"):
        load()
    file.unlink()
    with pytest.raises(TargetError, match="lacks some or all"):
        load()
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TargetError, match="lacks some or all"):
        load()
    for damaged in ("{", "[]", '{"weight_map": ["model.safetensors"]}'):
        (folder / "model.safetensors.index.json").write_text(damaged)
        with pytest.raises(TargetError, match=r"index\.json can't be read"):
            load()
