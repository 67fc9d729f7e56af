"""Heads as GGUF files: what llama.cpp expects of one, round trips, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from fledge.base.errors import HeadError
from fledge.deploy.exchange import export_head, first_difference, import_head
from fledge.engine import Engine
from fledge.heads import Head
from fledge.heads import gguf as heads_gguf
from fledge.heads.forms import canonical_tensors
from fledge.heads.gguf import TYPES, GgufType, rounded, write_gguf
from fledge.target import Target
from tests.heads.tiny_head import KINDS, load_tiny_target, random_head
from tests.sources import tiny_gguf
from tests.tiny import TinyShape, save_tiny_target


@pytest.fixture(scope="module")
def gguf_target(tiny_target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("gguf")
    file = tiny_gguf.write_gguf(tiny_target_folder, folder / "tiny.gguf")
    return Target.load(str(file), backend="torch", dtype="float32", cache_dir=folder)


@pytest.fixture(scope="module")
def head(gguf_target: Target) -> Head:
    made = random_head(gguf_target)
    return Head(made.config, made.weights.to(torch.bfloat16), made.metadata)


def fields(file: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("residual", [False, True])
def test_a_head_comes_back_as_its_type_rounds_it(
    head: Head, gguf_target: Target, kind: GgufType, residual: bool, tmp_path: Path
) -> None:
    made = Head(replace(head.config, norm_before_residual=residual), head.weights, head.metadata)
    write_gguf(made, str(tmp_path / "head.gguf"), gguf_target, kind)
    read = Head.load(str(tmp_path / "head.gguf"))
    assert read.config == made.config
    assert read.metadata.feature_layers == gguf_target.config.feature_layers
    assert torch.equal(read.weights.d2t, made.weights.d2t)
    theirs = canonical_tensors(read)
    for name, tensor in canonical_tensors(made).items():
        assert torch.equal(theirs[name].float(), rounded(tensor, kind)), name
    if kind == "bf16":
        assert first_difference(made, read) is None
    read.check_target(gguf_target)


def test_keys_and_tensors_are_those_that_llama_cpp_reads(
    head: Head, gguf_target: Target, tmp_path: Path
) -> None:
    file = tmp_path / "head.gguf"
    write_gguf(head, str(file), gguf_target, "q8_0")
    keys, theirs = fields(file), fields(gguf_target.place)
    assert keys["general.architecture"] == "eagle3"
    assert keys["eagle3.target_layers"] == [layer + 1 for layer in gguf_target.config.feature_layers]
    assert keys["eagle3.vocab_size"] == len(keys["tokenizer.ggml.tokens"]) == gguf_target.config.vocab_size
    tokenizer = {name: value for name, value in theirs.items() if name.startswith("tokenizer.")}
    assert tokenizer
    assert tokenizer.items() <= keys.items()
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    kinds = {name: tensor.tensor_type.name for name, tensor in tensors.items()}
    assert kinds.pop("d2t") == "I64"
    assert set(kinds.values()) == {"F32", "Q8_0"}
    assert [name for name, kind in kinds.items() if kind == "F32"] == [
        n for n in kinds if n.endswith("norm.weight") or n == "blk.0.attn_norm_2.weight"
    ]
    ids = head.weights.d2t + torch.arange(len(head.weights.d2t))
    assert tensors["d2t"].data.tolist() == ids.tolist()
    # Dimension i of q rotates with i + 16 of 32; in the file it is the row beside it.
    q = rounded(canonical_tensors(head)["midlayer.self_attn.q_proj.weight"], "q8_0")
    stored = gguf.quants.dequantize(tensors["blk.0.attn_q.weight"].data, gguf.GGMLQuantizationType.Q8_0)
    assert torch.equal(torch.from_numpy(stored)[:4], q[[0, 16, 1, 17]])


def test_a_folders_tokenizer_is_written_as_a_converter_would(
    head: Head, tiny_target_folder: Path, gguf_target: Target, tmp_path: Path
) -> None:
    write_gguf(head, str(tmp_path / "head.gguf"), load_tiny_target(tiny_target_folder), "bf16")
    keys, theirs = fields(tmp_path / "head.gguf"), fields(gguf_target.place)
    names = [n for n in theirs if n.startswith("tokenizer.") and n != "tokenizer.ggml.pre"]
    assert {name: keys[name] for name in names} == {name: theirs[name] for name in names}


def test_a_shared_file_drafts_and_becomes_a_folder(head: Head, gguf_target: Target, tmp_path: Path) -> None:
    file = tmp_path / "head.gguf"
    write_gguf(head, str(file), gguf_target, "bf16")
    imported = import_head(str(file), str(tmp_path / "folder"), target=str(gguf_target.place))
    assert first_difference(imported, head) is None
    plain, drafted = (
        Engine(gguf_target, one, kv_tokens=512).generate(["a bird"], max_tokens=24)[0].token_ids
        for one in (None, Head.load(str(file)))
    )
    assert plain == drafted


@pytest.mark.parametrize("kind", ["llama3", "linear"])
def test_scaled_rope_comes_back(kind: str, tmp_path: Path) -> None:
    scaling = {"rope_type": kind, "rope_theta": 10000.0, "factor": 8.0}
    if kind == "llama3":
        scaling |= {
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    target = load_tiny_target(save_tiny_target(tmp_path / "target", rope_parameters=scaling))
    write_gguf(made := random_head(target), str(tmp_path / "head.gguf"), target, "f32")
    read = Head.load(str(tmp_path / "head.gguf"))
    assert read.config.rope_scaling is not None
    assert made.config.rope_scaling is not None
    assert read.config.rope_scaling["factor"] == pytest.approx(8.0)
    assert read.config.rope_scaling["rope_type"] == kind


def test_what_llama_cpp_does_not_compute_is_refused_by_name(gguf_target: Target, tmp_path: Path) -> None:
    newer = random_head(gguf_target, **KINDS["eagle3.1"])
    with pytest.raises(HeadError, match="uses fc_norm and norm_output, which llama"):
        write_gguf(newer, str(tmp_path / "head.gguf"), gguf_target, "bf16")
    windowed = random_head(gguf_target, **KINDS["windowed"])
    with pytest.raises(HeadError, match="uses sliding_window, which llama"):
        write_gguf(windowed, str(tmp_path / "head.gguf"), gguf_target, "bf16")
    plain = random_head(gguf_target)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    stretched = Head(replace(plain.config, rope_scaling=yarn), plain.weights, plain.metadata)
    with pytest.raises(HeadError, match="RoPE scaling of the type yarn"):
        write_gguf(stretched, str(tmp_path / "head.gguf"), gguf_target, "bf16")
    assert not list(tmp_path.iterdir())


def rewritten(file: Path, *, keys: dict[str, Any], without: str = "") -> Path:
    """The same head's file with other values of eagle3's keys, or without a tensor."""
    reader, new = gguf.GGUFReader(file), file.with_name("other.gguf")
    writer = gguf.GGUFWriter(new, "eagle3")
    for field in reader.fields.values():
        name = field.name.removeprefix("eagle3.")
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, *of = field.types
            writer.add_key_value(field.name, keys.get(name, field.contents()), kind, of[0] if of else None)
    for name in keys:
        if f"eagle3.{name}" not in reader.fields:
            writer.add_uint32(f"eagle3.{name}", keys[name])
    for tensor in reader.tensors:
        if tensor.name != without:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return new


@pytest.mark.parametrize(
    ("keys", "without", "said"),
    [
        ({"norm_before_fc": True}, "", "norm_before_fc"),
        ({"target_layers": [1, 2]}, "", "reads 2 hidden states"),
        ({"block_count": 2}, "", "another structure"),
        ({"embedding_length": 0}, "", "embedding_length=0"),
        ({"rope.dimension_count": 16}, "", "partial_rotary_factor"),
        ({"attention.sliding_window": 64}, "", r"uses attention\.sliding_window"),
        ({}, "output.weight", "lm_head.weight"),
    ],
)
def test_a_file_that_fledge_cannot_compute_is_refused(
    head: Head, gguf_target: Target, keys: dict[str, Any], without: str, said: str, tmp_path: Path
) -> None:
    write_gguf(head, str(tmp_path / "head.gguf"), gguf_target, "bf16")
    with pytest.raises(HeadError, match=said):
        Head.load(str(rewritten(tmp_path / "head.gguf", keys=keys, without=without)))


def test_a_draft_vocabulary_in_another_type_is_refused(
    head: Head, gguf_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Narrow(gguf.GGUFWriter):  # type: ignore[misc]
        def add_tensor(self, name: str, tensor: Any, *, raw_dtype: Any) -> None:
            narrow = name == "d2t"
            super().add_tensor(
                name, tensor.astype("int32") if narrow else tensor, raw_dtype=None if narrow else raw_dtype
            )

    monkeypatch.setattr(heads_gguf, "GGUFWriter", Narrow)
    write_gguf(head, str(tmp_path / "head.gguf"), gguf_target, "bf16")
    with pytest.raises(HeadError, match="doesn't hold d2t in I64"):
        Head.load(str(tmp_path / "head.gguf"))


def test_a_weight_that_float16_cannot_hold_is_not_exported(
    head: Head, gguf_target: Target, tmp_path: Path
) -> None:
    large = head.weights.fc.clone()
    large[0, 0] = 1e5
    Head(head.config, replace(head.weights, fc=large), head.metadata).save(str(tmp_path / "head"))
    with pytest.raises(HeadError, match="float16 can't hold"):
        export_head(
            str(tmp_path / "head"),
            str(tmp_path / "new.gguf"),
            form="gguf",
            target=str(gguf_target.place),
            dtype="f16",
        )


def test_export_asks_for_what_it_needs(head: Head, gguf_target: Target, tmp_path: Path) -> None:
    head.save(str(tmp_path / "head"))
    source, target = str(tmp_path / "head"), str(gguf_target.place)
    with pytest.raises(HeadError, match="name the target with --target"):
        export_head(source, str(tmp_path / "new.gguf"), form="gguf")
    with pytest.raises(HeadError, match="let it end with"):
        export_head(source, str(tmp_path / "new"), form="gguf", target=target)
    with pytest.raises(HeadError, match="dtype 'q3_k' is unknown in GGUF"):
        export_head(source, str(tmp_path / "new.gguf"), form="gguf", target=target, dtype="q3_k")
    model = tmp_path / "model.gguf"
    model.write_bytes(gguf_target.place.read_bytes())
    with pytest.raises(HeadError, match="not an EAGLE-3 draft head"):
        export_head(source, str(model), form="gguf", target=target)
    assert model.read_bytes() == gguf_target.place.read_bytes()
    for _ in range(2):  # a head is overwritten
        export_head(source, str(tmp_path / "new.gguf"), form="gguf", target=target, dtype="q8_0")
    small = load_tiny_target(save_tiny_target(tmp_path / "small", shape=TinyShape(layers=4)))
    with pytest.raises(HeadError, match="layers"):
        export_head(source, str(tmp_path / "odd.gguf"), form="gguf", target=str(small.place))
