"""OpenAI's Responses API, as far as it is a chat completion: text, functions, forms, streams, earlier responses.

{"instructions": ..., "input": ..., "previous_response_id": ...}
    -> messages: instructions, the earlier conversation, input   -> chat completion
    -> output:   [reasoning], [message], [function_call] ...     -> kept for the next request, unless store is false
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from fledge.server import errors
from fledge.server.errors import ApiError
from fledge.server.job import Delta, Job, deltas
from fledge.server.message import MessageParts
from fledge.server.protocol import ChatRequest
from fledge.server.render import Json, encode, usage
from fledge.server.strict import ForgivingBody, Several, StrictBody, read
from fledge.server.values import Finite, UserName, Whole

_MOST_BYTES = 32 << 20  # of conversations that are kept
_ITEMS = {
    "reasoning": "rs",
    "message": "msg",
    "function_call": "fc",
}  # kinds of output, and how their ids begin


class TextOptions(ForgivingBody):
    """`text`: the answer's form."""

    format: dict[str, Any] | None = None


class ReasoningOptions(ForgivingBody):
    """`reasoning`."""

    effort: str | None = None


class ResponsesRequest(StrictBody):
    """POST /v1/responses."""

    model: str | None = Field(None, max_length=512)
    input: str | Annotated[list[dict[str, Any]], Several]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=128)
    store: bool | None = Field(None, description="false: a later request can't go on from this response")
    stream: bool | None = None
    max_output_tokens: Annotated[int | None, Whole] = None
    temperature: Finite | None = None
    top_p: Finite | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    user: UserName = None
    safety_identifier: UserName = None
    metadata: dict[str, Any] | None = Field(None, description="comes back with the response")
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: list[str] | None = Field(None, description="no effect")
    stream_options: dict[str, Any] | None = Field(None, description="no effect")

    def chat(self, earlier: Sequence[Json]) -> ChatRequest:
        """The same as a chat completion; an ApiError for what isn't one."""
        instructions = [{"role": "system", "content": self.instructions}] if self.instructions else []
        fields = {
            "messages": [*instructions, *earlier, *self.messages],
            "max_completion_tokens": self.max_output_tokens,
            "tools": None if self.tools is None else [_tool(tool) for tool in self.tools],
            "tool_choice": _choice(self.tool_choice),
            "response_format": _form(self.text.format if self.text is not None else None),
            "reasoning_effort": self.reasoning.effort if self.reasoning is not None else None,
        }
        same = ("model", "stream", "temperature", "top_p", "parallel_tool_calls", "user", "safety_identifier")
        return read(ChatRequest, {**fields, **{name: getattr(self, name) for name in same}})

    @property
    def messages(self) -> list[Json]:
        """The input as messages of a chat."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[Json] = []
        for item in self.input:
            _append(messages, item)
        return messages


def _append(messages: list[Json], item: Json) -> None:
    """One item of an input; calls, reasoning and text that follow each other are one assistant's message."""
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") != "assistant":
        messages.append({"role": item.get("role"), "content": item.get("content")})
        return
    if kind == "function_call_output":
        output = item.get("output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        return
    if kind not in _ITEMS:
        raise errors.invalid(f"input holds an item of the type {kind!s:.40}, which isn't supported", "input")
    if (
        not messages
        or messages[-1]["role"] != "assistant"
        or (kind == "message" and messages[-1].get("content"))
    ):
        messages.append({"role": "assistant", "content": None})
    last = messages[-1]
    if kind == "message":
        last["content"] = item.get("content")
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        last["tool_calls"] = [*last.get("tool_calls", ()), call]
    else:
        texts = [part.get("text", "") for part in item.get("content") or item.get("summary") or ()]
        last["reasoning_content"] = "\n".join(map(str, texts)) or None


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        raise errors.invalid(
            f"tools of the type {tool.get('type')!s:.40} aren't supported; use functions", "tools"
        )
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _choice(choice: str | Json | None) -> str | Json | None:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _form(form: Json | None) -> Json | None:
    if form is None or form.get("type") != "json_schema":
        return form
    return {
        "type": "json_schema",
        "json_schema": {key: value for key, value in form.items() if key != "type"},
    }


class Conversations:
    """What earlier responses ended with; the oldest are forgotten when they take too much memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[list[Json], int]] = OrderedDict()
        self._bytes = 0

    def find(self, client: str, response_id: str | None) -> list[Json]:
        """The messages up to a response of this client, its own included."""
        if response_id is None:
            return []
        found = self._kept.get((client, response_id))
        if found is None:
            raise errors.invalid(
                "previous_response_id names no response that this server has kept; send the conversation as input",
                "previous_response_id",
                "previous_response_not_found",
            )
        self._kept.move_to_end((client, response_id))
        return found[0]

    def keep(self, client: str, response_id: str, messages: list[Json]) -> None:
        """Keep a conversation, if it isn't too long."""
        size = len(encode({"messages": messages}))
        if size > _MOST_BYTES:
            return
        self._kept[client, response_id] = messages, size
        self._bytes += size
        while self._bytes > _MOST_BYTES:
            self._bytes -= self._kept.popitem(last=False)[1][1]


class ResponseRenderer:
    """One request's answer as a response, whole or as a stream's events."""

    def __init__(
        self, body: ResponsesRequest, model: str, earlier: Sequence[Json], kept: Conversations, client: str
    ) -> None:
        self.id = "resp_" + uuid.uuid4().hex
        self._body, self._model, self._earlier = body, model, earlier
        self._kept, self._client = kept, client
        self._created = int(time.time())
        self._output: list[Json] = []
        self._number = 0  # of a stream's next event

    def whole(self, jobs: Sequence[Job]) -> Json:
        (job,) = jobs
        for _ in self._add(job.answer().parts):
            pass
        for _ in self._end():
            pass
        return self._response(job)

    def chunk(self, index: int, job: Job, delta: Delta, *, first: bool) -> Json:
        raise AssertionError("a response's stream is made by `events`")

    def usage_chunk(self, jobs: Sequence[Job]) -> Json:
        raise AssertionError("a response's stream is made by `events`")

    async def events(self, jobs: Sequence[Job]) -> AsyncGenerator[bytes]:
        """A stream's events."""
        (job,) = jobs
        for kind in ("response.created", "response.in_progress"):
            yield self._event({"type": kind, "response": self._response(None)})
        try:
            async for _, delta in deltas(jobs):
                for made in self._add(job.parts(delta.text, last=delta.completion is not None)):
                    yield self._event(made)
            for made in self._end():
                yield self._event(made)
            done = self._response(job)
            yield self._event({"type": f"response.{done['status']}", "response": done})
        except ApiError as error:
            failed = {**self._response(None), "status": "failed"}
            failed["error"] = {"code": error.code or "server_error", "message": error.message}
            yield self._event({"type": "response.failed", "response": failed})

    def _event(self, data: Json) -> bytes:
        numbered = {**data, "sequence_number": self._number}
        self._number += 1
        return f"event: {data['type']}\ndata: ".encode() + encode(numbered) + b"\n\n"

    def _add(self, parts: MessageParts) -> Iterator[Json]:
        """Add to the output, and yield the events that say so."""
        if parts.reasoning:
            yield from self._add_text("reasoning", "reasoning_text", parts.reasoning)
        if parts.content:
            yield from self._add_text("message", "output_text", parts.content)
        for call in parts.calls.values():
            if call.name is not None:
                yield from self._open("function_call", call_id=call.id, name=call.name, arguments="")
            item = self._output[-1]
            item["arguments"] += call.arguments
            if call.arguments:
                kind = "response.function_call_arguments.delta"
                yield {"type": kind, **self._place(), "delta": call.arguments}

    def _add_text(self, kind: str, part: str, text: str) -> Iterator[Json]:
        if not self._output or self._output[-1]["type"] != kind:
            role: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._open(kind, **role, content=[])
            notes: Json = {"annotations": []} if part == "output_text" else {}
            empty = {"type": part, "text": "", **notes}
            yield {"type": "response.content_part.added", **self._place(), "content_index": 0, "part": empty}
            self._output[-1]["content"].append(empty)
        item = self._output[-1]
        item["content"][0]["text"] += text
        delta = {"type": f"response.{part}.delta", **self._place(), "content_index": 0, "delta": text}
        yield {**delta, "logprobs": []} if part == "output_text" else delta

    def _open(self, kind: str, **fields: Any) -> Iterator[Json]:
        yield from self._end()
        item = {"id": f"{_ITEMS[kind]}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self._output.append(item)
        place = {"output_index": len(self._output) - 1}
        yield {"type": "response.output_item.added", **place, "item": item}

    def _end(self) -> Iterator[Json]:
        """The last item of the output is complete."""
        if not self._output or self._output[-1]["status"] == "completed":
            return
        item = self._output[-1]
        item["status"] = "completed"
        place = self._place()
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        else:
            (part,) = item["content"]
            place |= {"content_index": 0}
            notes: Json = {"logprobs": []} if part["type"] == "output_text" else {}
            yield {"type": f"response.{part['type']}.done", **place, "text": part["text"], **notes}
            yield {"type": "response.content_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", "output_index": len(self._output) - 1, "item": item}

    def _place(self) -> Json:
        """Where the last item of the output is."""
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _response(self, job: Job | None) -> Json:
        """The response; `job`: when it is done."""
        body, cut = self._body, job is not None and job.finish_reason == "length"
        if job is not None and body.store is not False:
            answer: list[Json] = []
            for item in self._output:
                _append(answer, item)
            self._kept.keep(self._client, self.id, [*self._earlier, *body.messages, *answer])
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress" if job is None else "incomplete" if cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._model,
            "output": self._output if job is not None else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": body.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "metadata": body.metadata or {},
            "usage": None if job is None else _usage(job),
        }


def _usage(job: Job) -> Json:
    counted = usage([job])
    cached = counted.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }
