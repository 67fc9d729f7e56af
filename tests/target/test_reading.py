"""What a revision and the kernels depend on beyond files: how an architecture's tensors are read, and switches."""

from __future__ import annotations

from dataclasses import make_dataclass, replace
from pathlib import Path

import pytest
import torch

from fledge.target import Target, families, resolve_target
from fledge.target.config import DecoderConfig
from fledge.target.cpu import native_available


@pytest.mark.parametrize(
    "changed", [{"interleaved_rope": True}, {"norm_adds_one": True}, {"tensor_names": {"mlp": "ffn"}}]
)
def test_a_corrected_family_makes_another_revision_though_no_file_changed(
    tiny_target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object]
) -> None:
    before = resolve_target(str(tiny_target_folder), tmp_path).revision
    name = resolve_target(str(tiny_target_folder), tmp_path).config.architecture
    with monkeypatch.context() as patch:
        patch.setitem(families._FAMILIES, name, replace(families.find(name), **changed))  # type: ignore[arg-type]
        assert resolve_target(str(tiny_target_folder), tmp_path).revision != before
    assert resolve_target(str(tiny_target_folder), tmp_path).revision == before


@pytest.mark.kernels
def test_the_kernels_leave_a_switch_that_they_do_not_know_to_torch(tiny_target_folder: Path) -> None:
    config = Target.load(str(tiny_target_folder)).config
    assert native_available(config, torch.bfloat16, "cpu") == ""
    wider = make_dataclass("Wider", [("softcap", float, 0.0)], bases=(DecoderConfig,), frozen=True)
    values = {name: getattr(config, name) for name in config.__dataclass_fields__}
    assert native_available(wider(**values), torch.bfloat16, "cpu") == ""
    assert "softcap" in native_available(wider(**values, softcap=30.0), torch.bfloat16, "cpu")
