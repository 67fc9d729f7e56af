"""Identity that quantisations and fine-tunes of a model share and a head depends on: tokens and chat template.

Both are compared by what they do. A GGUF file's tokenizer holds the same tokens in another form, and a template's text
changes where its result doesn't.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

_TURNS = (
    ("user", "fledgeFIRSTfledge"),
    ("assistant", "fledgeANSWERfledge"),
    ("user", "fledgeLASTfledge"),
)
_EXAMPLES: tuple[tuple[tuple[str, str], ...], ...] = (
    _TURNS[:1],
    _TURNS,
    (("system", "fledgeSYSTEMfledge"), *_TURNS),
)
_CLOCK: Mapping[str, Any] = {"date_string": "1 Jan 2026", "strftime_now": lambda _: "1 Jan 2026"}


def vocabulary_hash(token_of: Callable[[Sequence[int]], Sequence[str]], vocab_size: int) -> str:
    """A hash of the strings of the tokens. The last sixteenth of the ids is left out: models pad it differently."""
    return _hash(list(token_of(range(vocab_size * 15 // 16))))


def template_hash(tokenizer: Any) -> str:
    """A hash of the texts of three conversations, on a fixed date; empty without a chat template.

    An example that the template refuses, such as one with a system message, counts as its refusal.
    """
    if not tokenizer.chat_template:
        return ""
    texts: list[str] = []
    for turns in _EXAMPLES:
        texts.append("")
        messages = [{"role": role, "content": content} for role, content in turns]
        with suppress(Exception):  # templates raise whatever their author chose
            texts[-1] = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **_CLOCK
            )
    return _hash(texts)


def _hash(strings: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(strings).encode()).hexdigest()[:16]
