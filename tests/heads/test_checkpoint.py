from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import fledge
from fledge.base.errors import HeadError
from fledge.draft import HeadMetadata
from fledge.heads import Head
from fledge.heads.checkpoint import write_head
from tests.heads.tiny_head import load_tiny_target, random_head
from tests.tiny import TinyShape, save_tiny_target


@pytest.fixture(scope="module")
def head(tiny_target_folder: Path) -> Head:
    made = random_head(load_tiny_target(tiny_target_folder), fc_norm=True, norm_output=True)
    metadata = replace(made.metadata, training={"steps": 3})
    return Head(made.config, made.weights.to(torch.bfloat16), metadata)


def rewrite(source: Path, target: Path, rename: dict[str, str], config: dict) -> Path:
    """A copy of a saved head with other tensor names and another config."""
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in rename.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    target.mkdir()
    safetensors.torch.save_file(renamed, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(config))
    return target


def assert_same_head(one: Head, other: Head) -> None:
    assert one.config == other.config
    assert torch.equal(one.weights.d2t, other.weights.d2t)
    mine, theirs = one.weights.trainable(), other.weights.trainable()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor.to(torch.bfloat16), theirs[name].to(torch.bfloat16)), name


def test_save_and_load_give_the_same_bits(head: Head, tmp_path: Path):
    head.save(str(tmp_path / "head"))
    loaded = Head.load(str(tmp_path / "head"))
    assert_same_head(head, loaded)
    assert loaded.metadata == head.metadata
    loaded.save(str(tmp_path / "again"))
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "head" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_the_file_has_the_names_shapes_and_tensors_engines_load(head: Head, tmp_path: Path):
    head.save(str(tmp_path))
    tensors, w = safetensors.torch.load_file(tmp_path / "model.safetensors"), head.weights
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["max_position_embeddings"] == 2048
    assert "eagle_config" not in config
    assert w.fc_norms is not None
    size, queries, keys = 64, 4 * 32, 2 * 32
    expected = {
        "fc.weight": ((size, 3 * size), w.fc),
        "midlayer.self_attn.q_proj.weight": ((queries, 2 * size), w.qkv[:queries]),
        "midlayer.self_attn.k_proj.weight": ((keys, 2 * size), w.qkv[queries : queries + keys]),
        "midlayer.self_attn.v_proj.weight": ((keys, 2 * size), w.qkv[queries + keys :]),
        "midlayer.self_attn.o_proj.weight": ((size, queries), w.o),
        "midlayer.mlp.gate_proj.weight": ((96, size), w.gate_up[:96]),
        "midlayer.mlp.up_proj.weight": ((96, size), w.gate_up[96:]),
        "midlayer.mlp.down_proj.weight": ((size, 96), w.down),
        "midlayer.hidden_norm.weight": ((size,), w.hidden_norm),
        "midlayer.input_layernorm.weight": ((size,), w.input_norm),
        "midlayer.post_attention_layernorm.weight": ((size,), w.post_norm),
        "norm.weight": ((size,), w.norm),
        "lm_head.weight": ((96, size), w.lm_head),
        **{f"fc_norm.{place}.weight": ((size,), norm) for place, norm in enumerate(w.fc_norms)},
    }
    maps = tensors.pop("d2t"), tensors.pop("t2d")
    assert {n: tuple(t.shape) for n, t in tensors.items()} == {n: shape for n, (shape, _) in expected.items()}
    parts = [tensor for _, tensor in expected.values()]
    assert not any(a.equal(b) for n, a in enumerate(parts) for b in parts[:n])  # or a mix-up wouldn't show
    assert [name for name, (_, tensor) in expected.items() if not torch.equal(tensors[name], tensor)] == []
    assert [tuple(map_.shape) for map_ in maps] == [(96,), (512,)]
    assert torch.equal(torch.arange(96) + maps[0], maps[1].nonzero().flatten())


def test_vllm_and_speculators_forms_load(head: Head, tmp_path: Path):
    head.save(str(tmp_path / "head"))
    flat = json.loads((tmp_path / "head" / "config.json").read_text())
    vllm = rewrite(tmp_path / "head", tmp_path / "vllm", {"midlayer.": "model.layers.0."}, flat)
    assert_same_head(head, Head.load(str(vllm)))
    outer = {key: flat.pop(key) for key in ("draft_vocab_size", "fc_norm", "norm_output")}
    nested = {"speculators_model_type": "eagle3", "transformer_layer_config": flat, **outer}
    speculators = rewrite(tmp_path / "head", tmp_path / "spec", {"midlayer.": "layers.0."}, nested)
    assert_same_head(head, Head.load(str(speculators)))


@pytest.mark.parametrize(
    ("rename", "change", "message"),
    [
        ({"lm_head.weight": "verifier_lm_head.weight"}, {}, "borrow"),
        ({"d2t": "verifier_norm.weight"}, {}, "no d2t"),
        ({"fc.weight": "verifier_norm.weight"}, {}, "no tensor fc.weight"),
        ({"fc.weight": "other"}, {}, "uses other, which"),
        ({}, {"hidden_size": 128}, "its config says"),
        ({}, {"hidden_size": None}, "lacks or misstates hidden_size=None"),
        ({}, {"rms_norm_eps": None}, "lacks or misstates rms_norm_eps=None"),
    ],
)
def test_a_head_that_cannot_run_is_refused(head: Head, tmp_path: Path, rename, change, message):
    head.save(str(tmp_path / "head"))
    config = json.loads((tmp_path / "head" / "config.json").read_text()) | change
    broken = rewrite(tmp_path / "head", tmp_path / "broken", rename, config)
    with pytest.raises(HeadError, match=message):
        Head.load(str(broken))


@pytest.mark.parametrize(
    "name",
    [
        "fc.bias",
        "midlayer.self_attn.q_proj.bias",
        "layers.0.self_attn.k_norm.weight",
        "layers.1.mlp.x",
        "mask_hidden",  # P-EAGLE's
        "midlayer.self_attn.sinks",
        "input_norm.weight",
    ],
)
def test_a_tensor_that_would_be_left_out_is_refused(head: Head, tmp_path: Path, name: str):
    """Its config need not mention it, and acceptance would only drop."""
    write_head(head, str(tmp_path))
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    harmless = {
        "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(16),
        "verifier_norm.weight": torch.ones(64),
    }
    safetensors.torch.save_file(tensors | harmless, path)
    assert_same_head(head, Head.load(str(tmp_path)))
    safetensors.torch.save_file(tensors | {name: torch.ones(64)}, path)
    with pytest.raises(
        HeadError, match=f"uses {name.replace('layers.0', 'midlayer')}, which isn't supported"
    ):
        Head.load(str(tmp_path))


def test_maps_that_disagree_are_refused(head: Head, tmp_path: Path):
    """Ids in d2t may stay inside the vocabulary; t2d still tells."""
    write_head(head, str(tmp_path))
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    ids = 2 * torch.arange(96)
    members = torch.zeros(512, dtype=torch.bool).index_fill_(0, ids, 1)
    safetensors.torch.save_file(tensors | {"d2t": ids, "t2d": members}, path)
    with pytest.raises(HeadError, match="name different tokens"):
        Head.load(str(tmp_path))


def test_yarn_counts_from_the_heads_own_length_where_none_is_named(head: Head, tmp_path: Path):
    head.save(str(tmp_path / "head"))
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    config |= {"max_position_embeddings": 1024, "rope_scaling": {"type": "yarn", "factor": 2.0}}
    yarn = Head.load(str(rewrite(tmp_path / "head", tmp_path / "yarn", {}, config)))
    assert yarn.config.rope_scaling == {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 1024,
    }


def test_a_file_or_an_unknown_id_in_a_heads_place_is_answered_by_what_to_name(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_head(head, str(tmp_path / "head"))
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(
            HeadError, match=rf"{name} is a file, and a head is a folder: name {tmp_path}/head$"
        ):
            Head.load(str(tmp_path / "head" / name))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HeadError, match="no head 'heads/mine': there is no such folder"):
        Head.load("heads/mine")


def test_missing_and_truncated_files_are_named(head: Head, tmp_path: Path):
    with pytest.raises(HeadError, match=r"config\.json is missing"):
        Head.load(str(tmp_path))
    write_head(head, str(tmp_path))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(HeadError, match=r"model\.safetensors isn't a whole"):
        Head.load(str(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "checksums.json"])
def test_a_changed_byte_is_named_until_the_change_is_declared(head: Head, tmp_path: Path, name: str):
    head.save(str(tmp_path))
    data = bytearray((tmp_path / name).read_bytes())
    place = data.index(b"10000.0") if name == "config.json" else len(data) // 2
    data[place] ^= 2
    (tmp_path / name).write_bytes(data)
    with pytest.raises(HeadError, match=rf"{name} is damaged.*: get the head again"):
        Head.load(str(tmp_path))
    (tmp_path / "checksums.json").unlink()
    Head.load(str(tmp_path))


def test_a_head_written_over_another_is_not_held_against_its_checksums(head: Head, tmp_path: Path):
    head.save(str(tmp_path))
    write_head(head, str(tmp_path), "vllm")
    assert_same_head(head, Head.load(str(tmp_path)))


def test_d2t_of_ids_instead_of_offsets_is_refused(head: Head):
    ids = head.vocabulary.token_ids
    with pytest.raises(HeadError, match="offsets"):
        Head(head.config, replace(head.weights, d2t=ids))


def test_a_head_for_another_target_is_refused(head: Head, tmp_path: Path, tiny_target_folder: Path):
    own = load_tiny_target(tiny_target_folder)
    head.check_target(own)
    Head(head.config, head.weights, HeadMetadata()).check_target(own)  # nothing recorded, nothing to compare
    other_weights = load_tiny_target(save_tiny_target(tmp_path / "seed", seed=1))
    head.check_target(other_weights)  # a fine-tune or another quantisation
    wider = load_tiny_target(save_tiny_target(tmp_path / "wide", shape=TinyShape(hidden=128)))
    with pytest.raises(HeadError, match="features of 64, the target has 128"):
        head.check_target(wider)


def test_the_head_that_ships_is_found_by_its_target(
    tiny_target_folder: Path, head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_tiny_target(tiny_target_folder)
    with pytest.raises(HeadError, match="no head ships for"):
        fledge.released_head(target)
    head.save(str(tmp_path / "shipped"))
    monkeypatch.setattr("fledge.released.FOLDER", tmp_path)
    assert_same_head(fledge.released_head(target), head)
