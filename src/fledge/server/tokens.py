"""Text to ids, off the event loop if long, and the text and bytes of single tokens for `logprobs`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from fledge.engine.detokenize import decode
from fledge.server import errors
from fledge.server.conversation import ChatMessage, Tool
from fledge.target.target import Target

_INLINE_CHARS = 4096  # shorter texts are encoded faster than another thread wakes up
_CHARS_PER_TOKEN = 64  # an upper bound; text longer than a context of such tokens isn't encoded
Result = TypeVar("Result")
_INCOMPLETE = "\ufffd"
_SPACE = "▁"  # SentencePiece's character for a space


class Tokens:
    """The server's view of a target's tokenizer."""

    def __init__(self, target: Target, max_context: int) -> None:
        self._target = target
        self._tokenizer = target.tokenizer
        self._most_chars = _CHARS_PER_TOKEN * max_context
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="fledge-tokens")
        self._special = {
            int(token_id): str(token) for token_id, token in self._tokenizer.added_tokens_decoder.items()
        }
        self._skipped = {
            int(token_id) for token_id, token in self._tokenizer.added_tokens_decoder.items() if token.special
        }
        self._byte_level = _SPACE not in self._tokenizer.get_vocab()
        self.vocabulary = target.config.vocab_size
        self.token = lru_cache(maxsize=65536)(self._token)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Tool] = (),
        *,
        opening: bool = True,
        continues: bool = False,
    ) -> list[int]:
        """Ids of a conversation; `options` for the template, the others as for `ChatTemplate.prompt_ids`."""

        def encode() -> list[int]:
            plain, offered = [message.plain for message in messages], [tool.plain for tool in tools]
            for message in plain:
                _refuse_halves(message["content"], "messages")
            beside = [{**message, "content": ""} for message in plain if message.keys() - {"role", "content"}]
            rest = json.dumps(
                [beside, offered, options], ensure_ascii=False
            )  # a template may print any of it
            _refuse_halves(rest, None)
            self._refuse_long(sum(len(message["content"]) for message in plain) + len(rest))
            with errors.refused("chat_template_kwargs"):
                self._target.chat.check_options(options or {})
            with errors.refused("tools" if offered else "messages"):
                self._target.chat.check_tools(plain, offered)
            with errors.refused("messages"):
                return self._target.chat.prompt_ids(
                    plain, options, offered, opening=opening, continues=continues
                )

        shown = sum(message.characters for message in messages)
        size = _INLINE_CHARS + 1 if tools or options else shown  # their characters haven't been counted
        return await self._run(encode, size)

    async def text(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text; `special`: include the tokens the tokenizer adds around it."""
        _refuse_halves(text, None)
        self._refuse_long(len(text))
        return await self._run(
            lambda: list(self._tokenizer.encode(text, add_special_tokens=special)), len(text)
        )

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, including special tokens."""
        return await self._run(lambda: decode(self._tokenizer, token_ids, skip_special=False), len(token_ids))

    def check(self, token_ids: Sequence[int], param: str) -> None:
        """Raise an ApiError for ids outside the vocabulary; `param`: the field that holds them."""
        if max(token_ids, default=0) >= self.vocabulary:
            raise errors.invalid(f"{param} holds ids beyond the vocabulary of {self.vocabulary}", param)

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Each id as text."""
        return [self.token(token_id)[0] for token_id in token_ids]

    def name(self, token_id: int) -> str:
        """An id's name in OpenAI's completions: its text, or `bytes:\\xf0\\x9f` if that isn't whole characters."""
        text, raw = self.token(token_id)
        return text if _INCOMPLETE not in text else "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def added(self, token_id: int, *, skip_special: bool) -> bytes:
        """The bytes that a token adds to an answer's text."""
        return b"" if skip_special and token_id in self._skipped else self.token(token_id)[1]

    def _token(self, token_id: int) -> tuple[str, bytes]:
        """One token as text (incomplete characters shown as such) and as bytes."""
        if token_id in self._special:
            return self._special[token_id], self._special[token_id].encode()
        name = self._tokenizer.convert_ids_to_tokens(token_id)
        if name is None:  # ids beyond the tokenizer's that pad the embedding
            return "", b""
        raw = _bytes_of(name, byte_level=self._byte_level)
        return raw.decode("utf-8", errors="replace"), raw

    async def _run(self, work: Callable[[], Result], size: int) -> Result:
        if size <= _INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _refuse_long(self, size: int) -> None:
        if size > self._most_chars:
            raise errors.invalid(
                f"a text of {size} characters is longer than this server's context",
                code="context_length_exceeded",
            )

    def close(self) -> None:
        """Stop the thread."""
        self._threads.shutdown(wait=False)


def _refuse_halves(text: str, param: str | None) -> None:
    """JSON allows half of a surrogate pair, which isn't a character and has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise errors.invalid(
            f"a text holds half of a surrogate pair (character {error.start}); send valid Unicode", param
        ) from None


def _bytes_of(name: str, *, byte_level: bool) -> bytes:
    """The bytes of a vocabulary entry: byte-level BPE, SentencePiece, or plain text."""
    if byte_level and all(char in _BYTES for char in name):
        return bytes(_BYTES[char] for char in name)
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace(_SPACE, " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(unprintable)
    }


_BYTES = _byte_alphabet()
