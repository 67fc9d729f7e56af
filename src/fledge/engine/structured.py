"""Structured outputs: answers that are JSON of a schema, match a regex or a grammar, or are one of several texts.

    tree:  {"a": ─┬─ 1 ─── ,        every node is masked by what may stand behind its own path: the follower walks
                  └─ "             down the tree and back up, and takes only what a round emits

llguidance (https://github.com/guidance-ai/llguidance) knows which tokens a grammar allows next. The mask is one more
edit of the logits before anything is chosen, so a constrained answer is plain decode's, greedy or sampled.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.base.errors import EngineError

logger = logging.getLogger("fledge")

_WANTED = {
    "json": "a JSON schema: a dictionary, or its text",
    "json_object": "True",
    "regex": "a regular expression",
    "choice": "a list of texts, none of them empty",
    "grammar": "a grammar in Lark's form",
}
_INSTALL = 'structured_outputs needs llguidance: pip install "fledge[structured]"'
_KEPT_GRAMMARS = 64  # compiled ones, of an engine


def checked(given: object) -> dict[str, Any] | None:
    """`structured_outputs` as one kind and its value, or an EngineError; whether it compiles is seen by `Grammars`."""
    if given is None:
        return None
    wanted = f"a dictionary with one of {', '.join(_WANTED)}"
    if not isinstance(given, Mapping):
        raise EngineError(f"structured_outputs is {given!r:.80}; use {wanted}")
    said = {name: value for name, value in given.items() if value is not None}
    if len(said) != 1 or not said.keys() <= _WANTED.keys():
        raise EngineError(f"structured_outputs names {', '.join(map(str, said)) or 'nothing'}; use {wanted}")
    ((kind, value),) = said.items()
    texts = (
        isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(t, str) for t in value)
    )
    right = {
        "json": isinstance(value, str | Mapping),
        "json_object": value is True,
        "regex": isinstance(value, str),
        "choice": texts and bool(value) and all(value),
        "grammar": isinstance(value, str),
    }
    if not right[kind]:
        raise EngineError(f"structured_outputs.{kind} is {value!r:.80}; use {_WANTED[kind]}")
    return {kind: list(value) if kind == "choice" else value}


class Grammars:
    """Compiles what requests want, for one target's tokens."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_ids: Collection[int]) -> None:
        """`vocabulary`: the target's, which may be larger than the tokenizer's; `end_ids` end an answer."""
        try:
            import llguidance.hf
        except ImportError as error:
            raise EngineError(_INSTALL) from error
        try:
            self._tokens = llguidance.hf.from_tokenizer(
                tokenizer, n_vocab=vocabulary, eos_token=sorted(end_ids)
            )
        except Exception as error:  # its Rust half raises what it likes
            raise EngineError(f"structured_outputs can't read the target's tokenizer: {error}") from error
        self._matcher = llguidance.LLMatcher
        self._ends = torch.zeros(-(-vocabulary // 32), dtype=torch.int32)
        for token in end_ids:
            self._ends[token // 32] |= 1 << token % 32 if token % 32 < 31 else -(1 << 31)
        self._compiled = lru_cache(_KEPT_GRAMMARS)(self._compile)

    def follower(self, wanted: Mapping[str, Any]) -> Follower:
        """At the beginning of an answer of that form. Raises EngineError for a grammar that isn't one."""
        ((kind, value),) = wanted.items()
        try:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError) as error:  # a set, a dictionary within itself
            raise EngineError(f"structured_outputs.{kind} can't be written as JSON: {error}") from error
        return self._compiled(kind, text).after(())

    def _compile(self, kind: str, text: str) -> Follower:
        try:
            if kind == "json":
                grammar = self._matcher.grammar_from_json_schema(text)
            elif kind == "json_object":
                grammar = self._matcher.grammar_from_json_schema('{"type": "object"}')
            elif kind == "regex":
                grammar = self._matcher.grammar_from_regex(text)
            else:
                if kind == "choice":
                    text = "start: " + " | ".join(json.dumps(t, ensure_ascii=False) for t in json.loads(text))
                grammar = self._matcher.grammar_from_lark(text)
            fault = self._matcher.validate_grammar(grammar, self._tokens)
            matcher = None if fault else self._matcher(self._tokens, grammar)
            fault = fault or (matcher.get_error() if matcher is not None else "")
        except Exception as error:
            fault = str(error)
        if fault:
            raise EngineError(f"structured_outputs.{kind} can't be used: {' '.join(fault.split())[:400]}")
        return Follower(matcher, self._ends)


class Follower:
    """Follows one answer through its grammar."""

    def __init__(self, matcher: Any, ends: Tensor) -> None:
        """`ends` [ceil(V / 32)] int32: the bits of what may stand behind a complete answer."""
        self._matcher, self._ends, self._told = matcher, ends, False

    def after(self, tokens: Sequence[int]) -> Follower:
        """Another, so many tokens further on."""
        other = Follower(self._matcher.deep_copy(), self._ends)
        other.take(tokens)
        return other

    def take(self, tokens: Sequence[int]) -> None:
        """Go on by tokens of the answer; what comes behind its end is ignored."""
        self._matcher.try_consume_tokens(list(tokens))
        if self._matcher.is_error() and not self._told:  # it has limits of work and memory
            self._told = True
            logger.warning("an answer ends before its form does: %s", self._matcher.get_error())

    def allowed(self, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor:
        """What may be chosen at these `nodes` of a tree, [len(nodes), ceil(V / 32)] int32: a bit for each token.

        `tokens` and `parents` [N]: the tree, parents first; node 0 is the last token taken. Below a forbidden node
        every token counts as allowed: nothing there is going to be accepted.
        """
        bits = torch.full((len(nodes), len(self._ends)), -1, dtype=torch.int32)
        wanted = {node: row for row, node in enumerate(nodes)}
        children: dict[int, list[int]] = {}
        for node in range(1, len(parents)):
            children.setdefault(parents[node], []).append(node)
        self._walk(0, tokens, children, wanted, bits)
        return bits

    def fitting(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may come next, in this order."""
        return 0 if self._matcher.is_stopped() else int(self._matcher.validate_tokens(list(tokens)))

    def may_follow(self, path: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """Which of `tokens` may stand behind `path`, the next tokens; none if `path` itself is forbidden."""
        if not self._went(path):
            return [False] * len(tokens)
        if self._matcher.is_stopped():
            fits = [bool(self._ends[token // 32] >> token % 32 & 1) for token in tokens]
        else:
            fits = [self._matcher.validate_tokens([token]) == 1 for token in tokens]
        self._matcher.rollback(len(path))
        return fits

    def forced(self, path: Sequence[int]) -> list[int]:
        """Tokens that the grammar forces behind `path`, as the tokenizer splits their text; often none."""
        if not self._went(path):
            return []
        tokens = [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())
        self._matcher.rollback(len(path))
        return tokens

    def _went(self, path: Sequence[int]) -> bool:
        """Move on along `path`, if all of it may come next; says whether it did."""
        taken = 0 if self._matcher.is_stopped() else int(self._matcher.try_consume_tokens(list(path)))
        if taken < len(path):
            self._matcher.rollback(taken)
        return taken == len(path)

    def _walk(
        self,
        node: int,
        tokens: Sequence[int],
        children: Mapping[int, list[int]],
        wanted: Mapping[int, int],
        bits: Tensor,
    ) -> None:
        if self._matcher.is_stopped():  # the answer is complete
            if node in wanted:
                bits[wanted[node]] = self._ends
            return
        if node in wanted:
            row = bits[wanted[node]]
            self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.nbytes)
        for child in children.get(node, ()):
            if tokens[child] >= 0 and self._matcher.try_consume_tokens([tokens[child]]):
                self._walk(child, tokens, children, wanted, bits)
                self._matcher.rollback(1)


def unpacked(bits: Tensor, vocabulary: int) -> Tensor:
    """Masks [n, ceil(V / 32)] int32 as [n, V] bool. Not by torch, whose threads take 16 ms a row on a busy machine."""
    found = np.unpackbits(bits.numpy().view(np.uint8), axis=1, count=vocabulary, bitorder="little")
    return torch.from_numpy(found.view(np.bool_))
