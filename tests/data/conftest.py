"""A tiny target that writes printable words and ends its turns, as an instruct model does."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from fledge.base import storage
from fledge.engine import Engine
from fledge.target import Target
from tests.tiny import TinyShape, make_tokenizer, save_tiny_target

END_LOGIT_SCALE = 2.0


@pytest.fixture(scope="session")
def talking_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output rows of tokens that are no words are zero; the turn end's row is larger than the others."""
    shape = TinyShape(layers=2, tied=False)
    folder = save_tiny_target(tmp_path_factory.mktemp("talking") / "llama", shape=shape)
    weights = load_file(folder / "model.safetensors")
    tokenizer = make_tokenizer()
    head = weights["lm_head.weight"]
    for token, text in enumerate(tokenizer.batch_decode([[i] for i in range(len(tokenizer))])):
        if not (text.strip().isascii() and text.strip().isalpha()):
            head[token] = 0
    head[tokenizer.eos_token_id] = head[tokenizer.encode(" the")[0]] * END_LOGIT_SCALE
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def target(talking_folder: Path) -> Target:
    return Target.load(str(talking_folder), dtype="float32", backend="torch")


@pytest.fixture
def engine(target: Target) -> Engine:
    return Engine(target, max_batch=4, max_context=512, kv_tokens=8192)


class Killed(BaseException):
    """Ends a stage as a kill does: nothing catches it on the way."""


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def made_by_no_backend(folder: Path) -> dict[str, bytes]:
    """`files_of`, less the mark of the backend that decoded: answers of a server or of Ray's actors have none."""
    return {name: content for name, content in files_of(folder).items() if Path(name).name != "backend.json"}


def kills(writes: Iterable[int]) -> list[Any]:
    """Arguments of `killed_at_write`: just before and just after each of these writes. Two of three are slow."""
    return [
        pytest.param(write, after, marks=pytest.mark.slow if (2 * number + after) % 3 else ())
        for number, write in enumerate(writes)
        for after in (False, True)
    ]


@contextmanager
def killed_at_write(number: int, after: bool = False) -> Iterator[None]:
    """The stage inside dies at its n-th write, just before or just after it."""
    write, writes = storage.write_atomic, itertools.count()

    def dying(url: str, data: bytes) -> None:
        dies = next(writes) == number
        if dies and not after:
            raise Killed
        write(url, data)
        if dies:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "write_atomic", dying)
        with pytest.raises(Killed):
            yield
