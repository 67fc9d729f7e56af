"""A target with pieces like SentencePiece's, as Llama 2, Mistral and Gemma have: ▁ is a space, <0xC3> a byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from fledge.engine import Engine
from fledge.server.options import ServerOptions
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


@pytest.fixture(scope="module")
def pieces(spelling: Target) -> Iterator[Running]:
    with running(Engine(spelling, max_batch=2), ServerOptions(port=0, model_names=(MODEL,))) as server:
        yield server


def test_a_text_completion_begins_with_the_space_between_prompt_and_answer(pieces: Running) -> None:
    only: Any = {"temperature": 0, "max_tokens": 2, "logit_bias": {str(ID["▁caf"]): 100}}
    completions = pieces.client().completions
    asked: Any = {"model": MODEL, "prompt": "日", **only}
    whole = completions.create(**asked, logprobs=0).choices[0]
    assert whole.text == " caf caf"
    assert whole.logprobs is not None
    assert whole.logprobs.text_offset == [0, 4]
    assert completions.create(**asked, echo=True).choices[0].text == "日 caf caf"
    assert completions.create(**asked, stop="f c").choices[0].text == " ca"
    for more in ({}, {"stop": "no"}, {"extra_body": {"return_trace": True}}):
        parts = list(completions.create(**asked, **more, stream=True))
        assert "".join(part.choices[0].text for part in parts) == " caf caf"
    assert "".join(text for part in parts for text, _ in part.choices[0].trace["pieces"]) == " caf caf"  # type: ignore[attr-defined]
    letters = {**asked, "logit_bias": {str(ID["é"]): 100}}
    assert completions.create(**letters).choices[0].text == "éé"  # no space was dropped
    chat = pieces.client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "日"}], **only
    )
    assert chat.choices[0].message.content == "caf caf"  # a message of its own
