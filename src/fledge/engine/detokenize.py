"""Text from token ids, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_INCOMPLETE = "�"  # what decoding puts for bytes that don't form a character (yet)


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the engine needs."""

    def decode(
        self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...


def decode(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of an answer, special tokens left out."""
    return tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


class Detokenizer:
    """Turns a growing list of tokens into pieces whose concatenation is the text of the whole list.

    Byte-level tokens may hold part of a character, so a piece that ends in the middle of one is held back. Some
    tokenizers drop a leading space, so new tokens are decoded behind the last piece's tokens:

        tokens   ... | context: last piece given out | new: not given out yet |
        piece    =     decode(context + new) minus decode(context)
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._new: list[int] = []

    def add(self, token_ids: Sequence[int], *, last: bool = False) -> str:
        """The text that became certain with these tokens; `last` gives out what is held back, too."""
        self._new += token_ids
        before = decode(self._tokenizer, self._context)
        text = decode(self._tokenizer, self._context + self._new)
        if not last and (text.endswith(_INCOMPLETE) or len(text) <= len(before)):
            return ""
        self._context, self._new = self._new, []
        return text[len(before) :]
