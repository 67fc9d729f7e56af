"""Streamed pieces are whole characters and add up to the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from fledge.engine.detokenize import Detokenizer, decode, decode_answer
from tests.tiny import make_tokenizer

TOKENIZER = make_tokenizer()


def falling_back() -> PreTrainedTokenizerFast:
    """As Llama 2's, Mistral's and Gemma's: token 2 + b is the byte b, words follow."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "a", "é"]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    spaces, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), strip])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


FALLING_BACK = falling_back()


@given(st.text(max_size=40), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_pieces_of_any_text_add_up_and_hold_back_incomplete_characters(text: str, sizes: list[int]) -> None:
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    pieces = _stream(tokens, sizes)
    whole = decode(TOKENIZER, tokens)
    assert "".join(pieces) == whole
    if "�" not in whole:
        assert not any("�" in piece for piece in pieces)


@given(
    st.lists(st.integers(0, 511), max_size=40),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.booleans(),
)
def test_pieces_of_any_tokens_add_up_even_where_bytes_are_invalid(
    tokens: list[int], sizes: list[int], skip: bool
) -> None:
    assert "".join(_stream(tokens, sizes, skip)) == decode(TOKENIZER, tokens, skip_special=skip)


def test_a_character_split_over_tokens_comes_out_whole() -> None:
    tokens = TOKENIZER.encode("né 🙂!", add_special_tokens=False)
    assert len(tokens) > len("né 🙂!")
    pieces = _stream(tokens, [1])
    assert "🙂" in pieces
    assert "".join(pieces) == "né 🙂!"


LEAD, TAIL = (TOKENIZER.encode("é", add_special_tokens=False)[n] for n in (0, 1))


@given(st.lists(st.sampled_from([LEAD, TAIL, TOKENIZER.eos_token_id, 40]), max_size=120), st.integers(1, 3))
def test_pieces_of_runs_without_text_add_up(tokens: list[int], size: int) -> None:
    assert "".join(_stream(tokens, [size])) == decode(TOKENIZER, tokens)


@pytest.mark.parametrize("token", [TOKENIZER.eos_token_id, LEAD, TAIL])
def test_tokens_without_a_text_of_their_own_do_not_pile_up(token: int) -> None:
    longest = 0

    class Counting:
        all_special_ids = TOKENIZER.all_special_ids

        def decode(
            self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
        ) -> str:
            nonlocal longest
            longest = max(longest, len(token_ids))
            return decode(TOKENIZER, token_ids)

    detokenizer = Detokenizer(Counting())
    pieces = [detokenizer.add([token]) for _ in range(500)]
    assert longest < 50
    assert "".join(pieces) + detokenizer.add([], last=True) == decode(TOKENIZER, [token] * 500)


@pytest.mark.parametrize("character", ["é", "你", "🙂"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_character_behind_any_number_of_broken_ones_comes_out_whole(character: str, size: int) -> None:
    pieces_of_it = TOKENIZER.encode(character, add_special_tokens=False)
    assert len(pieces_of_it) == len(character.encode())  # a token is a byte
    for broken in range(40):
        tokens = [LEAD] * broken + pieces_of_it + TOKENIZER.encode("a", add_special_tokens=False)
        pieces = _stream(tokens, [size])
        assert "".join(pieces) == decode(TOKENIZER, tokens) == "�" * broken + character + "a"


def as_bytes(text: str) -> list[int]:
    return [2 + byte for byte in text.encode()]


PARTS = st.sampled_from([*as_bytes("好😀"), 2 + 0x80, 1, 258, 259, 260, 261]).map(lambda token: [token])


@given(
    st.lists(st.sampled_from(["你", "好", "😀"]).map(as_bytes) | PARTS | PARTS.map(lambda part: part * 19)),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
)
def test_pieces_add_up_to_the_answer_where_a_tokenizer_falls_back_to_bytes(
    parts: list[list[int]], sizes: list[int]
) -> None:
    tokens = [token for part in parts for token in part]
    pieces = "".join(_stream(tokens, sizes, tokenizer=FALLING_BACK))
    assert pieces == decode_answer(FALLING_BACK, tokens)
    if "�" not in pieces:
        assert pieces == decode(FALLING_BACK, tokens)


def test_a_character_that_is_cut_off_spoils_none_of_those_before_it() -> None:
    cut = as_bytes("你好😀")[:-1]
    assert decode(FALLING_BACK, cut) == "�" * 9
    assert decode_answer(FALLING_BACK, cut) == "你好���"
    assert decode_answer(FALLING_BACK, [*cut, 260]) == "你好���a"


def _stream(
    tokens: list[int],
    sizes: list[int],
    skip: bool = True,
    *,
    tokenizer: PreTrainedTokenizerFast = TOKENIZER,
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip)
    pieces, at, turn = [], 0, 0
    while at < len(tokens):
        size = sizes[turn % len(sizes)]
        pieces.append(detokenizer.add(tokens[at : at + size], last=at + size >= len(tokens)))
        at, turn = at + size, turn + 1
    return pieces
