"""Text from token ids, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_INCOMPLETE = "�"  # what decoding puts for bytes that don't form a character (yet)
_CHARACTER = 4  # largest number of bytes, and so of tokens, in a character
_MANY = 16  # tokens


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the engine needs."""

    def decode(
        self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...

    @property
    def all_special_ids(self) -> list[int]: ...


def decode(tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
    """The text of an answer; `skip_special`: special tokens are left out."""
    return tokenizer.decode(
        list(token_ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
    )


def decode_answer(tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
    """`decode`, but what the pieces of a `Detokenizer` add up to also where characters are incomplete."""
    text = decode(tokenizer, token_ids, skip_special=skip_special)
    if _INCOMPLETE not in text:
        return text
    return Detokenizer(tokenizer, skip_special=skip_special).add(token_ids, last=True)


class Detokenizer:
    """Turns a growing list of tokens into pieces whose concatenation is the text of the whole list.

    Byte-level tokens may hold part of a character, so a piece that ends in the middle of one is held back. Some
    tokenizers drop a leading space, so new tokens are decoded behind the last piece's tokens:

        tokens   ... | context: last piece given out | new: not given out yet |
        piece    =     decode(context + new) minus decode(context)

    Tokens without a text of their own must not pile up: each new one would be decoded with all of them.

    Where a tokenizer falls back to bytes (SentencePiece's), a run of them is decoded as errors throughout if one of its
    characters is incomplete. So tokens are then read one by one, and what was given out stays.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._context: list[int] = []
        self._new: list[int] = []

    def add(self, token_ids: Sequence[int], *, last: bool = False) -> str:
        """The text that became certain with these tokens; `last` gives out what is held back, too."""
        if self._skip_special and len(self._new) > _MANY:
            self._drop_special()
        held = len(self._new)
        self._new += token_ids
        context, before = self._context, self._decode(self._context)
        text = self._decode(context + self._new)
        if len(token_ids) > 1 and _INCOMPLETE in text[len(before) :]:
            del self._new[held:]
            return "".join([*(self.add([token]) for token in token_ids), self.add([], last=last)])
        if not text.startswith(before):
            context, before, text = [], "", self._decode(self._new)
        certain = len(self._new)
        if not last and (text.endswith(_INCOMPLETE) or len(text) <= len(before)):
            # Where no character can reach from, beginnings of characters have become errors that stay.
            certain -= _CHARACTER
            if certain < _MANY:
                return ""
            full, text = text, self._decode(context + self._new[:certain])
            if len(text) <= len(before) or not full.startswith(text):
                return ""
        self._context, self._new = self._new[:certain], self._new[certain:]
        return text[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return decode(self._tokenizer, token_ids, skip_special=self._skip_special)

    def _drop_special(self) -> None:
        special = set(self._tokenizer.all_special_ids)
        self._new = [token for token in self._new if token not in special]
