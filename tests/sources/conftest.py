"""A tiny target as a GGUF file. Read only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.tiny_gguf import write_gguf
from tests.tiny import TinyShape, save_tiny_target


@pytest.fixture(scope="session")
def original_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_target(tmp_path_factory.mktemp("gguf") / "original", shape=TinyShape(head_dim=16))


@pytest.fixture(scope="session")
def gguf_file(original_folder: Path) -> Path:
    return write_gguf(original_folder, original_folder.parent / "tiny-model.gguf")
