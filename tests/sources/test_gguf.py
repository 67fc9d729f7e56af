"""GGUF files as targets: used as they are, every architecture as the checkpoint it was made from, or refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.base.errors import StorageError, TargetError
from fledge.target import Target, resolve_target, rope_table
from fledge.target.blocks import BLOCKS
from fledge.target.source import open_source
from tests.sources.tiny_gguf import llama3_factors, write_gguf
from tests.target.test_families import same
from tests.tiny import GEMMA3_ROPE, GRANITE, TinyShape, save_tiny_target

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 16.0,
    "beta_slow": 1.0,
    "attention_factor": 1.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
GEMMA3 = {"rope_parameters": GEMMA3_ROPE, "sliding_window": 256, "query_pre_attn_scalar": 16}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "llama", {}),
    "llama, linear RoPE": ("LlamaForCausalLM", "llama", {"rope_parameters": LINEAR}),
    "llama 3.1": ("LlamaForCausalLM", "llama", {"rope_parameters": LLAMA3}),
    "mistral": ("MistralForCausalLM", "mistral3", {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", {}),
    "qwen3, yarn": ("Qwen3ForCausalLM", "qwen3", {"rope_parameters": YARN}),
    "qwen3 of experts": ("Qwen3MoeForCausalLM", "qwen3moe", {"norm_topk_prob": True}),
    "gemma3": ("Gemma3ForCausalLM", "gemma3", GEMMA3),
    "granite": ("GraniteForCausalLM", "granite", GRANITE),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3", {}),
    "ernie": ("Ernie4_5ForCausalLM", "ernie4_5", {}),
    "seed_oss": ("SeedOssForCausalLM", "seed_oss", {}),
    "seed_oss without biases": ("SeedOssForCausalLM", "seed_oss", {"attention_bias": False}),
    "phi3": ("Phi3ForCausalLM", "phi3", {"sliding_window": 256}),
}


def load(place: Path, cache: Path) -> Target:
    return Target.load(str(place), cache_dir=cache, backend="torch")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_gguf_file_is_the_checkpoint_it_was_made_from(name: str, tmp_path: Path) -> None:
    architecture, gguf_name, others = FAMILIES[name]
    shape = TinyShape(head_dim=16, tied=name == "gemma3")
    original = load(save_tiny_target(tmp_path / "original", architecture, shape=shape, **others), tmp_path)
    target = load(write_gguf(original.folder, tmp_path / "model.gguf", architecture=gguf_name), tmp_path)
    assert target.config == original.config
    assert torch.equal(target.ends.embedding, original.ends.embedding)
    assert torch.equal(target.ends.lm_head, original.ends.lm_head)
    assert torch.equal(target.ends.norm, original.ends.norm)
    for ours, theirs in zip(target.weights.layers, original.weights.layers, strict=True):
        if ours.experts is None or theirs.experts is None:
            assert same(ours, theirs)
        else:
            assert torch.equal(ours.qkv, theirs.qkv)
            assert torch.equal(ours.experts.gate_up, theirs.experts.gate_up)
            assert torch.equal(ours.experts.down, theirs.experts.down)
            assert torch.equal(ours.experts.router, theirs.experts.router)


def test_tokens_and_template_are_those_of_the_checkpoint(
    gguf_file: Path, original_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target, original = load(gguf_file, tmp_path), load(original_folder, tmp_path)
    assert target.name == "tiny-model"
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    assert target.chat.prompt_ids(question) == original.chat.prompt_ids(question)
    assert target.chat.turn_end_ids == original.chat.turn_end_ids
    assert target.vocabulary_hash == original.vocabulary_hash
    assert target.template_hash == original.template_hash
    assert capfd.readouterr().err == ""  # no bar of transformers'


def test_no_weight_is_written_to_disk_or_copied(gguf_file: Path, tmp_path: Path) -> None:
    target = load(gguf_file, tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))
    assert sum(path.stat().st_size for path in target.folder.iterdir()) < 100_000
    source = open_source(target.place, target.config, torch.float32)
    first, again = (source.matrix("model.layers.2.mlp.up_proj.weight", 96, 64) for _ in range(2))
    assert first.parts[0].rows.data_ptr() == again.parts[0].rows.data_ptr()


@pytest.mark.parametrize(
    "name", [name for name in BLOCKS if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]
)
def test_rows_stay_in_their_format_and_in_the_order_of_the_checkpoint(
    name: str, original_folder: Path, tmp_path: Path
) -> None:
    original = load(original_folder, tmp_path)
    target = load(write_gguf(original_folder, tmp_path / "model.gguf", quantised=name), tmp_path)
    matrices = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "mlp.down_proj": (64, 96)}
    for stem, shape in matrices.items():
        ours, theirs = (
            open_source(one.place, one.config, torch.float32).matrix(f"model.layers.1.{stem}.weight", *shape)
            for one in (target, original)
        )
        assert ours.formats == (name,)
        weight, exact = ours.dequantise(torch.float32), theirs.dequantise(torch.float32)
        assert (weight - exact).abs().max() < 0.15 * exact.abs().max()
        assert torch.nn.functional.cosine_similarity(weight, exact).min() > 0.98  # of each row


def test_the_revision_follows_raw_rows_and_metadata(original_folder: Path, tmp_path: Path) -> None:
    def revision(name: str, **others: Any) -> str:
        return resolve_target(str(write_gguf(original_folder, tmp_path / name, **others)), tmp_path).revision

    first = revision("a.gguf")
    assert revision("b.gguf") == first
    assert revision("c.gguf", quantised="Q8_0") != first
    assert revision("d.gguf", metadata={"rope.scaling.factor": 2.0}) != first


def test_factors_that_no_scaling_gives_are_kept_as_they_are(original_folder: Path, tmp_path: Path) -> None:
    factors = [1.0, 1.0, 1.5, 3.0, 4.0, 4.0, 9.0, 9.5]
    file = write_gguf(original_folder, tmp_path / "own.gguf", also={"rope_freqs.weight": factors})
    target = load(file, tmp_path)
    assert target.config.rope_scaling is not None
    assert target.config.rope_scaling["factors"] == factors
    cos, _ = rope_table(target.config, 50)
    plain, _ = rope_table(replace(target.config, rope_scaling=None), 50)
    torch.testing.assert_close(cos[36, 4], plain[9, 4])  # the fifth frequency is a fourth
    torch.testing.assert_close(cos[:, :2], plain[:, :2])


def test_a_description_is_written_once_by_several_at_once(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.target import gguf_config

    written: list[Path] = []
    write = gguf_config.write_folder

    def counting(header: Any, folder: Path) -> None:
        written.append(folder)
        write(header, folder)

    monkeypatch.setattr(gguf_config, "write_folder", counting)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: resolve_target(str(gguf_file), tmp_path), range(3)))
    assert len(written) == 1
    assert len({r.folder for r in found}) == 1
    assert [p.name for p in (tmp_path / "targets").glob(".making-*")] == []


def test_an_interrupted_description_leaves_nothing_and_starts_again(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.target import gguf_config

    def full_disk(header: Any, folder: Path) -> None:
        (folder / "tokenizer.json").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    killed = (
        tmp_path / "targets" / f".making-{resolve_target(str(gguf_file), tmp_path / 'other').folder.name}-x"
    )
    killed.mkdir(parents=True)  # what a killed process leaves
    with monkeypatch.context() as patch:
        patch.setattr(gguf_config, "write_folder", full_disk)
        with pytest.raises(StorageError, match=r"No space left on device.*free some disk space"):
            resolve_target(str(gguf_file), tmp_path)
    assert [p for p in (tmp_path / "targets").iterdir() if p.is_dir()] == []
    assert resolve_target(str(gguf_file), tmp_path).folder.exists()


def refusal(file: Path, cache: Path) -> str:
    with pytest.raises(TargetError) as caught:
        resolve_target(str(file), cache)
    assert not list((cache / "targets").glob("*/config.json"))
    return str(caught.value)


def test_what_scales_rope_and_is_not_computed_is_named(original_folder: Path, tmp_path: Path) -> None:
    def said(**others: Any) -> str:
        return refusal(write_gguf(original_folder, tmp_path / "scaled.gguf", **others), tmp_path)

    assert "rope.scaling.type=longrope" in said(metadata={"rope.scaling.type": "longrope"})
    assert "rope.scaling.attn_factor=1.5" in said(metadata={"rope.scaling.attn_factor": 1.5})
    assert "rope_factors_long.weight" in said(also={"rope_factors_long.weight": [1.0] * 8})
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}
    assert "together with rope_freqs" in said(also={"rope_freqs.weight": [1.0] * 8}, metadata=yarn)
    partial = {"rope.dimension_count": 8.0}
    file = write_gguf(original_folder, tmp_path / "partial.gguf", metadata=partial)
    with pytest.raises(TargetError, match=r"partial_rotary_factor=0\.5"):
        load(file, tmp_path).decoder  # noqa: B018


def test_files_of_which_something_would_be_dropped_or_missing_are_clear_errors(
    original_folder: Path, tmp_path: Path
) -> None:
    def said(**others: Any) -> str:
        return refusal(write_gguf(original_folder, tmp_path / "other.gguf", **others), tmp_path)

    assert "holds blk.0.attn_q.bias" in said(also={"blk.0.attn_q.bias": [1.0] * 64})
    assert "no tensor blk.7.ffn_up.weight" in said(without=["blk.7.ffn_up.weight"])
    assert "no tensor token_embd.weight" in said(without=["token_embd.weight"])


@pytest.mark.parametrize("architecture", ["bloom", "qwen35", "lfm2"])
def test_heads_can_be_trained_for_an_architecture_that_the_decoder_doesnt_know(
    original_folder: Path, tmp_path: Path, architecture: str
) -> None:
    original = load(original_folder, tmp_path)
    file = write_gguf(original_folder, tmp_path / "other.gguf", architecture=architecture)
    target = load(file, tmp_path)
    sizes = (
        "num_layers",
        "hidden_size",
        "num_heads",
        "vocab_size",
        "max_position_embeddings",
        "feature_layers",
    )
    assert all(getattr(target.config, name) == getattr(original.config, name) for name in sizes)
    assert torch.equal(target.ends.embedding, original.ends.embedding)
    assert torch.equal(target.ends.lm_head, original.ends.lm_head)
    assert torch.equal(target.ends.norm, original.ends.norm)
    assert target.vocabulary_hash == original.vocabulary_hash
    with pytest.raises(TargetError, match=f"its architecture is {architecture}, and the decoder knows"):
        target.decoder  # noqa: B018


def test_numbers_of_each_layer_and_changed_logits_of_an_unknown_architecture(
    original_folder: Path, tmp_path: Path
) -> None:
    def written(**metadata: Any) -> Path:
        return write_gguf(original_folder, tmp_path / "other.gguf", architecture="lfm2", metadata=metadata)

    by_layer = {"attention.head_count_kv": [0, 2, 0, 2, 0, 2, 0, 2]}
    assert load(written(**by_layer), tmp_path).config.num_kv_heads == 2
    assert "final_logit_softcapping=30.0" in refusal(written(final_logit_softcapping=30.0), tmp_path / "new")


def test_damaged_files_are_clear_errors(gguf_file: Path, tmp_path: Path) -> None:
    whole, file = gguf_file.read_bytes(), tmp_path / "damaged.gguf"
    for cut in (100, 3000, len(whole) // 2, len(whole) - 5):
        file.write_bytes(whole[:cut])
        told = refusal(file, tmp_path)
        assert "isn't a whole GGUF file" in told
        assert "it ends within" in told
    for other in (b"", b"{}", b"GGML" + whole[4:]):
        file.write_bytes(other)
        assert "is no GGUF file" in refusal(file, tmp_path)
    file.write_bytes(whole.replace(b"blk.0.attn_q.weight", b"blk.0.attn_q.weihgt"))
    assert "attn_q.wei" in refusal(file, tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", 2**31, "2147483648 layers in its metadata, and fewer tensors"),
        ("llama.attention.head_count", 0, "attention.head_count=0 in its metadata, not one positive number"),
        ("llama.attention.key_length", 24, "values of another size than keys"),
        ("llama.context_length", 0, "context_length=0"),
    ],
)
def test_metadata_that_can_not_be_is_named_at_once(
    original_folder: Path, tmp_path: Path, key: str, value: int, message: str
) -> None:
    file = write_gguf(original_folder, tmp_path / "model.gguf")
    whole = file.read_bytes()
    at = whole.index(key.encode()) + len(key) + 4
    file.write_bytes(whole[:at] + value.to_bytes(4, "little") + whole[at + 4 :])
    assert message in refusal(file, tmp_path)


def test_a_tensor_of_an_unknown_type_or_of_another_size_is_named(
    original_folder: Path, tmp_path: Path
) -> None:
    file = write_gguf(original_folder, tmp_path / "model.gguf")
    whole, name = file.read_bytes(), b"blk.3.ffn_up.weight"
    kind = whole.index(name) + len(name) + 4 + 2 * 8
    file.write_bytes(whole[:kind] + (16).to_bytes(4, "little") + whole[kind + 4 :])
    assert "blk.3.ffn_up.weight" in (said := refusal(file, tmp_path))
    assert "is in IQ2_XXS" in said
    rows = kind - 8
    file.write_bytes(whole[:rows] + (32).to_bytes(8, "little") + whole[rows + 8 :])
    target = load(file, tmp_path)
    with pytest.raises(
        TargetError, match=r"blk\.3\.ffn_up\.weight.*shape \(32, 64\).*metadata says \(96, 64\)"
    ):
        list(target.weights.layers)


def test_the_rope_of_llama_3_is_told_from_its_factors(tmp_path: Path) -> None:
    shape = TinyShape(head_dim=64)
    folder = save_tiny_target(tmp_path / "llama3", shape=shape, rope_parameters={**LLAMA3, "factor": 32.0})
    target = load(write_gguf(folder, tmp_path / "model.gguf"), tmp_path)
    assert target.config == load(folder, tmp_path).config
    assert max(llama3_factors(target.config)) == 32.0
    assert json.loads((target.folder / "config.json").read_text())["rope_parameters"]["factor"] == 32.0
