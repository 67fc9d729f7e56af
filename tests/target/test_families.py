"""Target families: all that is particular to an architecture is in its file, and users add their own."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fledge.target
from fledge.base.errors import TargetError
from fledge.target import SUPPORTED_ARCHITECTURES, DecoderConfig, families
from fledge.target.families import Family, register
from fledge.target.weights import LayerWeights
from tests.target.loading import weights_of
from tests.tiny import TinyShape, save_tiny_target

ROOM = Path(fledge.target.__file__).parent
CONFIG_NAMES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "hidden_act": "activation"}
TENSOR_NAMES = {
    "model": "transformer",
    "layers": "h",
    "self_attn": "attn",
    "gate_proj": "w1",
    "lm_head": "out",
}


@pytest.fixture
def own_family(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which a test registers a family; it is forgotten afterwards."""
    monkeypatch.setitem(families._FAMILIES, "ParrotForCausalLM", Family(()))
    return "ParrotForCausalLM"


def rewrite(folder: Path, architecture: str, **changes: Any) -> None:
    """Give a checkpoint another architecture, and the names above."""
    raw = json.loads((folder / "config.json").read_text()) | {"architectures": [architecture]}
    raw = {CONFIG_NAMES.get(name, name): value for name, value in raw.items()} | changes
    (folder / "config.json").write_text(json.dumps(raw))
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        ".".join(TENSOR_NAMES.get(p, p) for p in name.split(".")): tensors[name].clone() for name in tensors
    }
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})


def same(ours: LayerWeights, theirs: LayerWeights) -> bool:
    pairs = ((getattr(ours, name), getattr(theirs, name)) for name in ours.__dataclass_fields__)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a is b is None for a, b in pairs)


def test_no_architecture_is_named_outside_of_its_family() -> None:
    """Neither whole nor by its beginning, as in `architecture.startswith("Qwen3")`; docstrings and comments may."""
    files = {path.stem for path in (ROOM / "families").glob("*.py")} - {"__init__", "family", "undecoded"}
    assert files == set(families._FILES)
    identifiers = re.compile(rf"(^|_)({'|'.join(sorted(files))})(_|$)")
    named = []
    for path in sorted(ROOM.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and len(text) > 3:
                named += [(path.name, text) for name in SUPPORTED_ARCHITECTURES if name.startswith(text)]
            word = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
            if isinstance(word, str) and identifiers.search(word):
                named.append((path.name, word))
    assert named == []


def test_a_checkpoint_under_other_names_is_read_as_the_one_it_was(own_family: str, tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path, shape=TinyShape(tied=False))
    config = DecoderConfig.from_folder(folder)
    weights = weights_of(folder, torch.bfloat16, config)
    register(Family((own_family,), config_names=CONFIG_NAMES, tensor_names=TENSOR_NAMES))
    rewrite(folder, own_family)
    renamed = DecoderConfig.from_folder(folder)
    assert not renamed.undecodable
    assert (renamed.hidden_size, renamed.num_layers) == (config.hidden_size, config.num_layers)
    again = weights_of(folder, torch.bfloat16, renamed)
    assert torch.equal(weights.lm_head, again.lm_head)
    assert all(map(same, weights.layers, again.layers))


def test_errors_name_fields_and_tensors_as_the_checkpoint_does(own_family: str, tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path)
    register(Family((own_family,), config_names=CONFIG_NAMES, tensor_names=TENSOR_NAMES))
    rewrite(folder, own_family, n_embd=0)
    with pytest.raises(TargetError, match="n_embd=0"):
        DecoderConfig.from_folder(folder)
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace('"n_embd": 0', '"n_embd": 64')
    )
    config = DecoderConfig.from_folder(folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.h.3.mlp.w1.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(TargetError, match=r"no tensor transformer\.h\.3\.mlp\.w1\.weight"):
        list(weights_of(folder, torch.bfloat16, config).layers)


@pytest.mark.parametrize("like", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_neighbouring_dimensions_that_rotate_together_are_put_as_the_decoder_has_them(
    like: str, own_family: str, tmp_path: Path
) -> None:
    """Rows of q and k, their biases and the weights of their norms."""
    folder = save_tiny_target(tmp_path, like, shape=TinyShape(head_dim=16, tied=False))
    weights = weights_of(folder)
    register(Family((own_family,), fields=families.find(like).fields, interleaved_rope=True))
    raw = json.loads((folder / "config.json").read_text()) | {"architectures": [own_family]}
    (folder / "config.json").write_text(json.dumps(raw))
    tensors = load_file(folder / "model.safetensors")
    turned = re.compile(r"\.([qk]_proj|[qk]_norm)\.")
    for name in filter(turned.search, tensors):
        halves = tensors[name].view(-1, 2, 8, *tensors[name].shape[1:])
        tensors[name] = halves.transpose(1, 2).reshape(tensors[name].shape).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    again = weights_of(folder)
    assert all(map(same, weights.layers, again.layers))


def test_a_scale_of_scores_holds_for_biases_of_queries_too(own_family: str, tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path, "Qwen2ForCausalLM", shape=TinyShape(head_dim=16))
    plain = weights_of(folder, torch.float32).layers[0]
    register(Family((own_family,), fields=lambda raw: {"qkv_bias": True, "query_scale": 0.5}))
    raw = json.loads((folder / "config.json").read_text()) | {"architectures": [own_family]}
    (folder / "config.json").write_text(json.dumps(raw))
    scaled = weights_of(folder, torch.float32).layers[0]
    assert plain.qkv_bias is not None
    assert scaled.qkv_bias is not None
    queries = 4 * 16
    for before, after in ((plain.qkv, scaled.qkv), (plain.qkv_bias, scaled.qkv_bias)):
        torch.testing.assert_close(after[:queries], before[:queries] * 2)  # 0.5 in place of 16 ** -0.5
        assert torch.equal(after[queries:], before[queries:])


def test_fields_that_an_unknown_architecture_shares_with_a_known_one_stay_in_its_revision() -> None:
    """Heads were trained for such targets, and name the revisions that were made of these."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    raw = {**sizes, "vocab_size": 512, "max_position_embeddings": 1024, "sliding_window": 256}
    next_one = DecoderConfig.from_hf({**raw, "architectures": ["Qwen3NextForCausalLM"]})
    assert next_one.qk_norm
    assert (next_one.window, next_one.windowed_layers) == (0, ())
    assert DecoderConfig.from_hf({**raw, "architectures": ["Gemma3nForCausalLM"]}).out_norms
    assert not DecoderConfig.from_hf({**raw, "architectures": ["OlmoeForCausalLM"]}).qk_norm
