"""Structured outputs: answers that are JSON of a schema, match a regex or a grammar, or are one of several texts.

    tree:  {"a": ─┬─ 1 ─── ,        every node is masked by what may follow its own path: the follower walks
                  └─ "             down the tree and back up, and takes only what a round emits

llguidance (https://github.com/guidance-ai/llguidance) knows which tokens a grammar allows next. The mask is one more
edit of the logits before anything is chosen, so a constrained answer is plain decode's, greedy or sampled.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from fledge.base.errors import EngineError
from fledge.engine.json_schema import prepared_text

_WANTED = {
    "json": "a JSON schema: a dictionary, or its text",
    "json_object": "True",
    "regex": "a regular expression",
    "choice": "a list of texts, none of them empty",
    "grammar": "a grammar in Lark's form",
}
_INSTALL = 'structured_outputs needs llguidance: pip install "fledge[structured]"'
# Bytes of source. A compiled grammar takes up to 400 times as much memory (a text in a JSON schema's const).
LARGEST_GRAMMAR = 128 << 10
_MOST_RECENT = 256 << 10  # bytes of source, of grammars that are kept for later answers
_MOST_LIVE = 2 << 20  # bytes of source, of those and the ones of answers in progress
_PROBED_TOKENS = 16  # tokens of a trial answer when a grammar is compiled
_LISTING = re.compile(r"\s*(\d+ \||\^)")  # llguidance shows the line of a grammar that is wrong
_LONGEST_FAULT = 400  # characters of llguidance's message that are passed on


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


class GrammarsFullError(EngineError):
    """Too many different grammars are in use; some of them end with their answers."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """A compiled grammar."""

    matcher: Any  # at the beginning of an answer, where it stays
    ends: Tensor  # [ceil(V / 32)] int32: the bits of tokens that may follow a complete answer
    size: int  # bytes of its source


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
        self._live: WeakValueDictionary[tuple[str, str], Grammar] = WeakValueDictionary()
        self._recent: OrderedDict[tuple[str, str], Grammar] = (
            OrderedDict()
        )  # stay although no answer needs them
        self._lock = threading.Lock()

    def follower(self, wanted: Mapping[str, Any]) -> Follower:
        """At the beginning of an answer of that form.

        Compiling may take seconds and happens in the caller's thread. Raises EngineError for a grammar that isn't one
        or is too large, and GrammarsFullError while the answers in progress need as many as memory allows.
        """
        ((kind, value),) = wanted.items()
        try:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            size = len(text.encode())
        except (
            TypeError,
            ValueError,
        ) as error:  # a set, a dictionary within itself, half of a surrogate pair
            raise EngineError(f"structured_outputs.{kind} can't be written as JSON: {error}") from error
        if size > LARGEST_GRAMMAR:
            raise EngineError(
                f"structured_outputs.{kind} has {size:,} bytes; use a form of at most {LARGEST_GRAMMAR:,}"
            )
        key = kind, text
        with self._lock:
            grammar = self._live.get(key)
            if grammar is None:
                self._make_room(size)
        if grammar is None:
            grammar = self._compile(kind, text, size)
        with self._lock:
            self._live[key] = self._recent[key] = grammar
            self._recent.move_to_end(key)
            while sum(each.size for each in self._recent.values()) > _MOST_RECENT:
                self._recent.popitem(last=False)
        return Follower(grammar)

    def _make_room(self, size: int) -> None:
        """Forget recent grammars, if another of so many bytes needs their place."""
        while sum(each.size for each in self._live.values()) + size > _MOST_LIVE:
            if not self._recent:
                raise GrammarsFullError(
                    "the answers in progress have too many different forms for another one; try again later"
                )
            self._recent.popitem(last=False)

    def _compile(self, kind: str, text: str, size: int) -> Grammar:
        try:
            if kind == "json":
                grammar = self._matcher.grammar_from_json_schema(prepared_text(text))
            elif kind == "json_object":
                grammar = self._matcher.grammar_from_json_schema('{"type": "object"}')
            elif kind == "regex":
                grammar = self._matcher.grammar_from_regex(text)
            else:
                if kind == "choice":
                    text = "start: " + " | ".join(json.dumps(t, ensure_ascii=False) for t in json.loads(text))
                grammar = self._matcher.grammar_from_lark(text)
            matcher = self._matcher(self._tokens, grammar, log_level=0)
            fault = matcher.get_error() or _fault_ahead(matcher)
        except Exception as error:
            fault = str(error)
        if fault:
            raise EngineError(f"structured_outputs.{kind} can't be used: {_first_lines(fault)}")
        return Grammar(matcher, self._ends, size)


def schema_fault(schema: Any) -> str:
    """Why a JSON schema can't be compiled, whatever the tokenizer; "" if it can."""
    from llguidance import LLMatcher

    try:
        fault = LLMatcher.validate_grammar(
            LLMatcher.grammar_from_json_schema(prepared_text(json.dumps(schema)))
        )
    except Exception as error:  # as in `_compile`
        fault = str(error)
    return _first_lines(fault)


def _fault_ahead(matcher: Any) -> str:
    """The error that some answer's first tokens lead to; "" for none.

    A grammar may compile and still be beyond llguidance's limits of work and memory in a state that answers reach
    later. Along one answer this is found out here; see `Follower.completed_by` for the others.
    """
    probe = matcher.deep_copy()
    for _ in range(_PROBED_TOKENS):
        if probe.is_stopped():
            break
        forced = probe.compute_ff_tokens()
        allowed = np.frombuffer(probe.compute_bitmask(), np.uint8)
        if probe.is_stopped() or not allowed.any():
            break
        first = int(np.unpackbits(allowed, bitorder="little").argmax())
        probe.try_consume_tokens(forced or [first])
    return str(probe.get_error())


def _first_lines(fault: str) -> str:
    """llguidance's message without the grammar and the parser's state, which may be long and are the client's."""
    fault = fault.replace("Unimplemented keys:", "these keywords of JSON Schema aren't supported:")
    lines = [line for line in fault.split("<state>")[0].splitlines() if not _LISTING.match(line)]
    return " ".join(" ".join(lines).split())[:_LONGEST_FAULT]


class Follower:
    """Follows one answer through its grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher.deep_copy()
        self._taken: list[int] = []
        self._broken = False

    def after(self, tokens: Sequence[int]) -> Follower:
        """A follower that has also taken `tokens`."""
        other = Follower(self._grammar)
        other.take([*self._taken, *tokens])
        return other

    def take(self, tokens: Sequence[int]) -> None:
        """Advance by tokens of the answer; any after its end are ignored."""
        taken = self._matcher.try_consume_tokens(list(tokens))
        self._taken += tokens[:taken]
        self._broken = bool(self._matcher.is_error())  # then it counts as stopped, and only ends are allowed

    def completed_by(self, tokens: Sequence[int]) -> bool:
        """True if all of `tokens` fit and the answer may end after them.

        If not, llguidance has met one of its limits of work and memory: then only ends of the answer are allowed.
        """
        matcher = self._grammar.matcher.deep_copy()
        return matcher.try_consume_tokens(list(tokens)) == len(tokens) and bool(matcher.is_accepting())

    def allowed(self, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor:
        """Bit masks of the tokens allowed at these `nodes` of a tree, [len(nodes), ceil(V / 32)] int32.

        `tokens` and `parents` [N]: the tree, parents first; node 0 is the last token taken. Below a forbidden node
        every token counts as allowed: nothing there is going to be accepted.
        """
        bits = torch.full((len(nodes), len(self._grammar.ends)), -1, dtype=torch.int32)
        wanted = {node: row for row, node in enumerate(nodes)}
        children: dict[int, list[int]] = {}
        for node in range(1, len(parents)):
            children.setdefault(parents[node], []).append(node)
        self._walk(0, [], tokens, children, wanted, bits)
        return bits

    def fitting(self, tokens: Sequence[int]) -> int:
        """Number of these tokens that may come next, in this order."""
        return 0 if self._matcher.is_stopped() else int(self._matcher.validate_tokens(list(tokens)))

    def may_follow(self, path: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """For each of `tokens`, True if it may follow `path`; all False if `path` itself is forbidden."""
        if not self._went(path):
            return [False] * len(tokens)
        if self._matcher.is_stopped():
            fits = [bool(self._grammar.ends[token // 32] >> token % 32 & 1) for token in tokens]
        else:
            fits = [self._matcher.validate_tokens([token]) == 1 for token in tokens]
        self._go_back(len(path))
        return fits

    def forced(self, path: Sequence[int]) -> list[int]:
        """Tokens that the grammar forces after `path`, as the tokenizer splits their text; often none."""
        if not self._went(path):
            return []
        tokens = [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())
        self._go_back(len(path))
        return tokens

    def _went(self, path: Sequence[int]) -> bool:
        """Move on along `path`, if all of it may come next; says whether it did."""
        taken = 0 if self._matcher.is_stopped() else int(self._matcher.try_consume_tokens(list(path)))
        if taken < len(path):
            self._go_back(taken)
        return taken == len(path)

    def _go_back(self, tokens: int) -> None:
        """Take back the last `tokens`, which `_taken` doesn't hold."""
        self._matcher.rollback(tokens)
        self._revive()

    def _revive(self, path: Sequence[int] = ()) -> bool:
        """After an error, which a matcher keeps for ever: another matcher, advanced along `path`. False without one.

        What fails may be a draft that won't be accepted, and the answer then goes on as if it hadn't been tried.
        """
        if self._broken or not self._matcher.is_error():
            return False
        self._matcher = self._grammar.matcher.deep_copy()
        self._matcher.try_consume_tokens([*self._taken, *path])
        return True

    def _walk(
        self,
        node: int,
        path: list[int],
        tokens: Sequence[int],
        children: Mapping[int, list[int]],
        wanted: Mapping[int, int],
        bits: Tensor,
    ) -> None:
        """Fill the rows of `node`, which follows `path`, and of all below it."""
        if self._matcher.is_stopped():  # the answer is complete
            if node in wanted:
                bits[wanted[node]] = self._grammar.ends
            return
        if node in wanted:
            row = bits[wanted[node]]
            self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.nbytes)
            if self._revive(path):
                row[:] = self._grammar.ends
                return
        for child in children.get(node, ()):
            if tokens[child] >= 0 and self._matcher.try_consume_tokens([tokens[child]]):
                self._walk(child, [*path, tokens[child]], tokens, children, wanted, bits)
                self._matcher.rollback(1)
            if self._revive(path) and child in wanted:
                bits[wanted[child]] = self._grammar.ends


def unpacked(bits: Tensor, vocabulary: int) -> Tensor:
    """Masks [n, ceil(V / 32)] int32 as [n, V] bool. Not by torch, whose threads take 16 ms a row on a busy machine."""
    found = np.unpackbits(bits.numpy().view(np.uint8), axis=1, count=vocabulary, bitorder="little")
    return torch.from_numpy(found.view(np.bool_))
