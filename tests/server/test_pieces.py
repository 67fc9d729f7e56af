"""A target whose tokenizer is of SentencePiece's kind, as Llama 2, Mistral and Gemma have: ▁ is a space, <0xC3> a byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from fledge.engine import Engine
from fledge.server.tokens import Tokens
from fledge.target import Target
from tests.server.conftest import MODEL, Running, running
from tests.tiny import CHATML, SPECIAL_TOKENS, TinyShape, save_tiny_target

_PIECES = [
    *SPECIAL_TOKENS,
    "<unk>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    "▁caf",
    "é",
    "ça",
    "日",
]
ID = {piece: number for number, piece in enumerate(_PIECES)}


@pytest.fixture(scope="module")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder: Path = tmp_path_factory.mktemp("pieces") / "llama"
    save_tiny_target(folder, shape=TinyShape(layers=1, heads=1, kv_heads=1))
    backend = Tokenizer(models.BPE(vocab=ID, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        unk_token="<unk>",
        additional_special_tokens=list(SPECIAL_TOKENS),
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return Target.load(str(folder), dtype="float32", backend="torch")


def test_pieces_of_letters_with_accents_and_of_bytes_are_told_as_they_are(spelling: Target) -> None:
    tokens = Tokens(spelling, 512)
    for piece, text in (("é", "é"), ("ça", "ça"), ("▁caf", " caf"), ("日", "日"), ("<0x0A>", "\n")):
        assert tokens.token(ID[piece]) == (text, text.encode())
    assert tokens.token(ID["<0xC3>"]) == ("\ufffd", b"\xc3")
