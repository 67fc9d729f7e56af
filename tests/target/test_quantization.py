"""`quantization=`: matrices made smaller, or expanded, while they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.base.errors import TargetError
from fledge.target import Target, TargetOptions
from fledge.target.cpu import NativeDecoder
from fledge.target.matrix import Quantization
from tests.sources.tiny_gguf import write_gguf


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def q4_1(tiny_target_folder: Path, tmp_path: Path) -> str:
    return str(write_gguf(tiny_target_folder, tmp_path / "model.gguf", quantised="Q4_1"))


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_matrices_are_quantised_while_they_are_read_and_norms_are_not(
    tiny_target_folder: Path, name: Quantization
) -> None:
    plain = Target.load(str(tiny_target_folder), backend="torch").stored_weights
    target = TargetOptions(model=str(tiny_target_folder), backend="torch", quantization=name).load()
    made, before = target.stored_weights.layers[1], plain.layers[1]
    for ours, theirs in ((made.qkv, before.qkv), (made.down, before.down)):
        assert ours is not None
        assert theirs is not None
        assert theirs.formats == ("BF16",)
        assert ours.equals(theirs.quantised(name))
    assert target.stored_weights.embedding.formats == (name.upper(),)
    assert torch.equal(made.input_norm, before.input_norm)
    assert torch.equal(target.weights.layers[1].qkv, made.qkv.dequantise(torch.bfloat16))


def test_a_quantised_file_keeps_its_form_or_is_expanded(q4_1: str) -> None:
    kept, expanded = (
        Target.load(q4_1, backend="torch", quantization=name).stored_weights.layers[1].qkv
        for name in (None, "none")
    )
    assert kept.formats == ("Q4_1",)
    assert expanded.formats == ("BF16",)
    assert torch.equal(kept.dequantise(torch.bfloat16), expanded.dequantise(torch.bfloat16))
    again = Target.load(q4_1, backend="torch", quantization="q8_0")
    with pytest.raises(
        TargetError, match=r"token_embd\.weight.*is quantised already, in Q4_1: leave quantization out"
    ):
        again.ends  # noqa: B018


def test_reports_name_the_form_and_other_matrices_are_another_revision(
    tiny_target_folder: Path, q4_1: str
) -> None:
    found = {
        (place, name): Target.load(place, backend="torch", quantization=name)  # type: ignore[arg-type]
        for place in (str(tiny_target_folder), q4_1)
        for name in (None, "none", "q8_0")
    }
    assert [target.quantization for target in found.values()] == [None, None, "q8_0", "Q4_1", None, "q8_0"]
    revisions = [target.revision for target in found.values()]
    assert revisions[0] == revisions[1]  # nothing to expand
    assert len(set(revisions)) == 5


def test_an_unknown_quantization_is_a_clear_error(tiny_target_folder: Path) -> None:
    with pytest.raises(TargetError, match="'q5_0' isn't known: use one of none, q8_0, q4_0"):
        Target.load(str(tiny_target_folder), quantization="q5_0")  # type: ignore[arg-type]


@pytest.mark.kernels
@pytest.mark.parametrize("name", [None, "q8_0", "q4_0"])
def test_the_kernels_keep_the_memory_that_is_asked_for(
    tiny_target_folder: Path, q4_1: str, name: Quantization | None
) -> None:
    places = [str(tiny_target_folder)] if name else [str(tiny_target_folder), q4_1]
    for place in places:
        target = Target.load(place, backend="native", quantization=name)
        decoder = target.decoder
        assert isinstance(decoder, NativeDecoder)
        kept = decoder.weight_bytes_per_token + (
            decoder.embedding.bytes if not decoder.embedding.coded else 0
        )
        assert 0.9 * kept < target.memory_bytes < 1.1 * kept
