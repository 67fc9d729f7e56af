"""Loading needs little memory besides the weights as they stay: no file is in memory twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from benchmarks.loading_memory import Loaded, load
from fledge.target.matrix import Quantization
from fledge.target.tensors import StoredTensors
from tests.base.forked import forked
from tests.tiny import TinyShape, save_tiny_target

_BESIDE = 120e6  # a layer on its way, what else an engine has


def load_both(tiny: str, model: str, quantization: Quantization | None, result: str) -> None:
    load(tiny)  # with the kernels and all imports
    Path(result).write_text(json.dumps(load(model, quantization)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = TinyShape(layers=12, hidden=1024, intermediate=2048, heads=16, kv_heads=4, head_dim=64)
    return save_tiny_target(tmp_path_factory.mktemp("larger"), shape=shape, max_shard_size="100MB")


def test_a_tensor_that_was_copied_stays_when_pages_are_released(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a safetensors that copies, as one that doesn't map its files does."""
    files = sorted(folder.glob("*.safetensors"))
    name = "model.embed_tokens.weight"
    expected = load_file(next(file for file in files if name in load_file(file)))[name]

    class Copying:
        def __init__(self, file: str, framework: str) -> None:
            self._tensors = load_file(file)

        def keys(self) -> list[str]:
            return list(self._tensors)

        def get_tensor(self, name: str) -> torch.Tensor:
            return self._tensors[name].clone()

    for reader in (safe_open, Copying):
        monkeypatch.setattr("fledge.target.tensors.safe_open", reader)
        stored = StoredTensors(files)
        tensor = stored.read(name)
        stored.release()
        assert torch.equal(tensor, expected)


@pytest.mark.kernels
@pytest.mark.parametrize("quantization", [None, "q8_0", "q4_0"])
def test_loading_takes_little_more_memory_than_the_weights_that_stay(
    folder: Path, tiny_target_folder: Path, tmp_path: Path, quantization: Quantization | None
) -> None:
    result = tmp_path / "result.json"
    forked(load_both, str(tiny_target_folder), str(folder), quantization, str(result)).join()
    found = Loaded(*json.loads(result.read_text()))
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    print(found, stored)
    assert found.peak - found.before <= 1.25 * found.weights + _BESIDE
