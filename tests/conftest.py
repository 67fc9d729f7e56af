"""Fixtures shared by all rooms' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny import save_tiny_target

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny tied Llama (8 layers, hidden 64, vocabulary 512, ChatML) in bf16. Read only."""
    return save_tiny_target(tmp_path_factory.mktemp("tiny") / "llama")
