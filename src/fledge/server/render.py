"""Answers in OpenAI's JSON: chat and text completions, complete and in chunks."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from itertools import zip_longest
from typing import Any, Protocol

from fledge.engine import TokenLogprob, TreeTrace
from fledge.server.errors import ApiError
from fledge.server.job import Delta, Job, deltas
from fledge.server.message import Call, MessageParts
from fledge.server.protocol import ChatRequest, CompletionRequest
from fledge.server.stream import DONE, event
from fledge.server.tokens import Tokens

Json = dict[str, Any]
_LOWEST = -9999.0  # OpenAI's log probability for zero, which JSON can't represent


class Rendering(Protocol):
    """Renders one request's jobs as JSON."""

    id: str

    def whole(self, jobs: Sequence[Job]) -> Json:
        """The response to a request that doesn't stream."""

    def events(self, jobs: Sequence[Job]) -> AsyncGenerator[bytes]:
        """A stream's events, up to its end. Raises the ApiError of a job that fails."""

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that fails."""


class Renderer:
    """One request's answers, in OpenAI's format for chat or for text completions."""

    def __init__(self, body: ChatRequest | CompletionRequest, model: str, tokens: Tokens) -> None:
        self._chat = isinstance(body, ChatRequest)
        self._model = model
        self._tokens = tokens
        self._body = body
        self._with_token_ids = bool(body.return_token_ids)
        self._with_logprobs = body.wanted_logprobs is not None
        self._top_of_prompt = None if isinstance(body, ChatRequest) else body.prompt_logprobs
        self.id = ("chatcmpl-" if self._chat else "cmpl-") + uuid.uuid4().hex
        self._created = int(time.time())

    def whole(self, jobs: Sequence[Job]) -> Json:
        choices = []
        for index, job in enumerate(jobs):
            answer = job.answer()
            message = {"message": _message(answer.parts)} if self._chat else {}
            choices.append({**self._choice(index, job, answer, first=True), **message})
        return {**self._head(chunk=False), "choices": choices, "usage": usage(jobs)}

    async def events(self, jobs: Sequence[Job]) -> AsyncGenerator[bytes]:
        options = self._body.stream_options
        continuous = bool(options and options.continuous_usage_stats)
        everything = self._body.return_trace or self._body.return_token_ids  # also chunks without text
        begun: set[int] = set()
        async for index, delta in deltas(jobs):
            delta.parts = jobs[index].parts(delta.text, last=delta.completion is not None)
            if not (delta.parts or delta.completion or delta.logprobs or everything):
                continue  # held back: part of a character, or possibly of a stop string or a call
            chunk = self._chunk(index, jobs[index], delta, first=index not in begun)
            begun.add(index)
            if continuous:
                chunk["usage"] = usage(jobs)
            elif options and options.include_usage:
                chunk["usage"] = None
            yield event(encode(chunk))
        if options and options.include_usage:
            yield event(encode({**self._head(chunk=True), "choices": [], "usage": usage(jobs)}))
        yield DONE

    def failed(self, error: ApiError) -> bytes:
        return event(encode(error.body())) + DONE

    def _chunk(self, index: int, job: Job, delta: Delta, *, first: bool) -> Json:
        message = {"delta": _delta(delta.parts, first=first)} if self._chat else {}
        choice = {**self._choice(index, job, delta, first=first), **message}
        return {**self._head(chunk=True), "choices": [choice]}

    def _head(self, *, chunk: bool) -> Json:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self._chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def _choice(self, index: int, job: Job, delta: Delta, *, first: bool) -> Json:
        """A choice, or an addition to it, without a chat's message."""
        choice: Json = {"index": index}
        if not self._chat:
            choice["text"] = job.echo + delta.text if first else delta.text
        choice["logprobs"] = self._logprobs(delta.logprobs, job) if self._with_logprobs else None
        scored = None if delta.completion is None else delta.completion.prompt_logprobs
        if scored is not None and self._top_of_prompt is not None:
            choice["prompt_logprobs"] = [None, *(self._by_id(entry, self._top_of_prompt) for entry in scored)]
        choice["finish_reason"] = job.finish_reason if delta.completion else None
        if delta.completion is not None:
            choice["stop_reason"] = delta.completion.stop_reason
        if self._with_token_ids:
            choice["token_ids"] = delta.token_ids
            if first:
                choice["prompt_token_ids"] = job.prompt_ids
        if job.trace:
            trees = [self._tree(tree, bonus) for tree, bonus in delta.trees]
            choice["trace"] = {"pieces": delta.pieces, "sources": delta.sources, "trees": trees}
        return choice

    def _logprobs(self, entries: Sequence[TokenLogprob], job: Job) -> Json:
        if self._chat:
            return {"content": [self._chat_entry(entry) for entry in entries], "refusal": None}
        skip = job.params.skip_special_tokens
        added = [self._tokens.added(entry.token_id, skip_special=skip) for entry in entries]
        named: Json = {
            "tokens": [self._tokens.name(entry.token_id) for entry in entries],
            "token_logprobs": [json_number(entry.logprob) for entry in entries],
            "top_logprobs": [self._named_top(entry) for entry in entries],
        }
        scored = job.completion.prompt_logprobs if job.completion is not None else None
        if not job.echo or scored is None:
            return {**named, "text_offset": [job.text_offset(raw) for raw in added]}
        ids = job.prompt_ids  # the first has no probability: nothing is before it
        offsets = [job.text_offset(self._tokens.added(token, skip_special=False)) for token in ids]
        return {
            "tokens": [*map(self._tokens.name, ids), *named["tokens"]],
            "token_logprobs": [
                None,
                *(json_number(each.logprob) for each in scored),
                *named["token_logprobs"],
            ],
            "top_logprobs": [None, *map(self._named_top, scored), *named["top_logprobs"]],
            "text_offset": [*offsets, *(job.text_offset(raw) for raw in added)],
        }

    def _by_id(self, entry: TokenLogprob, top: int) -> Json:
        """A token of a prompt and its alternatives, as vLLM reports them."""
        ids = dict([*entry.top[:top], (entry.token_id, entry.logprob)])
        return {
            str(token): {"logprob": json_number(value), "decoded_token": self._tokens.token(token)[0]}
            for token, value in ids.items()
        }

    def _named_top(self, entry: TokenLogprob) -> Json:
        """The most likely tokens and the chosen one by name; of several with one name, the most likely."""
        logprobs: Json = {}
        for token_id, logprob in [*entry.top, (entry.token_id, entry.logprob)]:
            logprobs.setdefault(self._tokens.name(token_id), json_number(logprob))
        return logprobs

    def _chat_entry(self, entry: TokenLogprob) -> Json:
        top = [self._token_json(token_id, logprob) for token_id, logprob in entry.top]
        return {**self._token_json(entry.token_id, entry.logprob), "top_logprobs": top}

    def _token_json(self, token_id: int, logprob: float) -> Json:
        text, raw = self._tokens.token(token_id)
        return {"token": text, "logprob": json_number(logprob), "bytes": list(raw)}

    def _tree(self, tree: TreeTrace, bonus: int | None) -> Json:
        return {
            "tokens": self._tokens.names(tree.token_ids),
            "parents": tree.parents,
            "probs": [round(math.exp(min(value, 0.0)), 4) for value in tree.log_probs],
            "sources": tree.sources,
            "path": tree.path,
            "bonus": None if bonus is None else self._tokens.token(bonus)[0],
        }


def _message(parts: MessageParts) -> Json:
    no_content = not parts.content and (parts.reasoning or parts.calls)
    message: Json = {
        "role": "assistant",
        "content": None if no_content else parts.content,
        "refusal": None,
    }
    if parts.reasoning:
        message["reasoning_content"] = message["reasoning"] = parts.reasoning
    if parts.calls:
        message["tool_calls"] = [_call(call) for call in parts.calls.values()]
    return message


def _delta(parts: MessageParts, *, first: bool) -> Json:
    delta: Json = {"role": "assistant"} if first else {}
    if parts.content or not (parts.reasoning or parts.calls):
        delta["content"] = parts.content
    if parts.reasoning:
        delta["reasoning_content"] = delta["reasoning"] = parts.reasoning
    if parts.calls:
        delta["tool_calls"] = [{"index": index, **_call(call)} for index, call in parts.calls.items()]
    return delta


def _call(call: Call) -> Json:
    if call.name is None:  # a continuation of its arguments
        return {"function": {"arguments": call.arguments}}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def usage(jobs: Sequence[Job]) -> Json:
    """Token counts and statistics of speculation. A prompt that several choices share counts once.

    Such choices share one list of ids.
    """
    prompts = {id(job.prompt_ids): len(job.prompt_ids) for job in jobs}
    prompt, answer = sum(prompts.values()), sum(len(job.token_ids) for job in jobs)
    report: Json = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
    stats = [job.completion.stats for job in jobs if job.completion is not None]
    if len(stats) < len(jobs):
        return report
    first = {
        id(job.prompt_ids): stat.cached_tokens
        for job, stat in zip(reversed(jobs), reversed(stats), strict=True)
    }
    report["prompt_tokens_details"] = {"cached_tokens": sum(first.values())}
    rounds = sum(each.rounds for each in stats)
    by_depth = zip_longest(*(each.accepted_by_depth for each in stats), fillvalue=0)
    report["speculation"] = {
        "tau": round(sum(each.tau * each.rounds for each in stats) / rounds, 4) if rounds else 1.0,
        "rounds": rounds,
        "drafted_rounds": sum(each.drafted_rounds for each in stats),
        "accepted_by_depth": [sum(counts) for counts in by_depth],
        "accepted_by_source": dict(sum((Counter(each.accepted_by_source) for each in stats), Counter[str]())),
        "ttft_ms": round(min(each.ttft_ms for each in stats), 3),
        "tpot_ms": round(sum(each.tpot_ms for each in stats) / len(stats), 3),
    }
    return report


def encode(value: Json) -> bytes:
    """Compact JSON; NaN and infinity never get here."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can name but no text can hold
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def json_number(value: float) -> float:
    """A log probability as a JSON number."""
    return max(value, _LOWEST) if math.isfinite(value) else _LOWEST
