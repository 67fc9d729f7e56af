"""OpenAI's Responses API, as far as it is a chat completion: text, functions, forms, streams, earlier responses.

{"instructions": ..., "input": ..., "previous_response_id": ...}
    -> messages: instructions, the earlier conversation, input   -> chat completion
    -> output:   [reasoning], [message], [function_call] ...     -> kept for the next request, unless store is false
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fledge.server.answer_forms import JsonSchema, ResponseFormat
from fledge.server.blocks import BlockRenderer
from fledge.server.errors import ApiError
from fledge.server.job import Job
from fledge.server.message import Piece
from fledge.server.protocol import ChatRequest
from fledge.server.render import Json, usage
from fledge.server.response_items import (
    Offered,
    append,
    choice_of,
    item_of,
    offered_tools,
    text_input,
)
from fledge.server.response_store import ResponseStore, StoredResponse
from fledge.server.strict import ForgivingBody, Several, StrictBody, read
from fledge.server.values import Finite, TokenLimit, UserName

# Of items, by type: how they begin.
_IDS = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}
_PARTS = {"reasoning": "reasoning_text", "content": "output_text"}  # by kind of text


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
    max_output_tokens: TokenLimit = None
    temperature: Finite | None = None
    top_p: Finite | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=1024)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    user: UserName = None
    safety_identifier: UserName = None
    metadata: dict[str, Any] | None = Field(None, description="comes back with the response")
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto: as disabled; input longer than the context is refused"
    )
    top_logprobs: Literal[0] | None = None
    background: Literal[False] | None = None
    include: list[str] | None = Field(None, description="no effect")
    stream_options: dict[str, Any] | None = Field(None, description="no effect")

    def chat(self, earlier: Sequence[Json]) -> ChatRequest:
        """The same as a chat completion; an ApiError for what isn't one."""
        instructions = [{"role": "system", "content": self.instructions}] if self.instructions else []
        offered = self.offered
        fields = {
            "messages": [*instructions, *earlier, *self.messages],
            "max_completion_tokens": self.max_output_tokens,
            "tools": [each.tool for each in offered] or None,
            "tool_choice": choice_of(self.tool_choice, offered),
            "response_format": _form(self.text.format if self.text is not None else None),
            "reasoning_effort": self.reasoning.effort if self.reasoning is not None else None,
        }
        same = ("model", "stream", "temperature", "top_p", "parallel_tool_calls", "user", "safety_identifier")
        return read(_Chat, {**fields, **{name: getattr(self, name) for name in same}})

    def resolve(self, find: Callable[[str], Json]) -> None:
        """Put items of earlier responses in the place of what refers to them by id."""
        if isinstance(self.input, list):
            self.input = [
                find(str(item.get("id"))) if item.get("type") == "item_reference" else item
                for item in self.input
            ]

    @property
    def messages(self) -> list[Json]:
        """The input as messages of a chat."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[Json] = []
        for number, item in enumerate(self.input):
            append(messages, item, f"input.{number}", self.offered)
        return messages

    @cached_property
    def offered(self) -> list[Offered]:
        """The functions among the tools."""
        return [] if self.tool_choice == "none" else offered_tools(self.tools or ())


class _Chat(ChatRequest):
    """A chat completion whose errors name the fields of a response."""

    form_place: ClassVar[str] = "text.format.schema"


def _form(form: Json | None) -> Json | ResponseFormat | None:
    if form is None or form.get("type") != "json_schema":
        return None if form is None else read(ResponseFormat, form, "text.format")
    schema = {key: value for key, value in form.items() if key != "type"}
    return {"type": "json_schema", "json_schema": read(JsonSchema, schema, "text.format")}


class ResponseRenderer(BlockRenderer):
    """One request's answer as a response, whole or as a stream's events; its blocks are the output's items."""

    def __init__(
        self, body: ResponsesRequest, model: str, earlier: StoredResponse | None, store: ResponseStore, client: str,
        size: int,
    ) -> None:  # fmt: skip
        """`size`: of the body, in bytes."""
        super().__init__("resp_")
        self._body, self._model, self._earlier = body, model, earlier
        self._store, self._client, self._size = store, client, size
        self._offered = {each.tool.function.name: each for each in body.offered}
        self._arguments = ""  # of the call that is open
        self._created = int(time.time())
        self._number = 0  # of a stream's next event

    def _event(self, data: Json) -> bytes:
        numbered = {**data, "sequence_number": self._number}
        self._number += 1
        return super()._event(numbered)

    def _begin(self, job: Job) -> Iterator[Json]:
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self._response(None)}

    def _open(self, piece: Piece) -> Iterator[Json]:
        if piece.call is not None:
            kind, named = item_of(piece.call.name, self._offered)
            empty = {"input": ""} if kind == "custom_tool_call" else {"arguments": ""}
            self._arguments = ""
            yield from self._item(kind, call_id=piece.call.id, **named, **empty)
            return
        if piece.kind == "reasoning":
            yield from self._item("reasoning", summary=[], content=[])
        else:
            yield from self._item("message", role="assistant", content=[])
        notes: Json = {"annotations": []} if piece.kind == "content" else {}
        part = {"type": _PARTS[piece.kind], "text": "", **notes}
        yield {"type": "response.content_part.added", **self._place(), "content_index": 0, "part": {**part}}
        self._blocks[-1]["content"].append(part)

    def _item(self, kind: str, **fields: Any) -> Iterator[Json]:
        item = {"id": f"{_IDS[kind]}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self._blocks.append(item)
        yield {"type": "response.output_item.added", "output_index": len(self._blocks) - 1, "item": item}

    def _extend(self, piece: Piece) -> Iterator[Json]:
        item = self._blocks[-1]
        if item["type"] == "custom_tool_call":  # whose text is known once its JSON is complete
            self._arguments += piece.text
            return
        if piece.kind == "call":
            item["arguments"] += piece.text
            yield {"type": "response.function_call_arguments.delta", **self._place(), "delta": piece.text}
            return
        part = item["content"][0]
        part["text"] += piece.text
        notes: Json = {"logprobs": []} if piece.kind == "content" else {}
        kind = f"response.{part['type']}.delta"
        yield {"type": kind, **self._place(), "content_index": 0, "delta": piece.text, **notes}

    def _close(self) -> Iterator[Json]:
        item, place = self._blocks[-1], self._place()
        item["status"] = "completed"
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        elif item["type"] == "custom_tool_call":
            item["input"] = text_input(self._arguments)
            yield {"type": "response.custom_tool_call_input.delta", **place, "delta": item["input"]}
            yield {"type": "response.custom_tool_call_input.done", **place, "input": item["input"]}
        else:
            (part,) = item["content"]
            place |= {"content_index": 0}
            notes: Json = {"logprobs": []} if part["type"] == "output_text" else {}
            yield {"type": f"response.{part['type']}.done", **place, "text": part["text"], **notes}
            yield {"type": "response.content_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", "output_index": len(self._blocks) - 1, "item": item}

    def _place(self) -> Json:
        """Where the last item of the output is."""
        return {"item_id": self._blocks[-1]["id"], "output_index": len(self._blocks) - 1}

    def _end(self, job: Job) -> Iterator[Json]:
        done = self._done(job)
        yield {"type": f"response.{done['status']}", "response": done}

    def _error(self, error: ApiError) -> Json:
        failed = {**self._response(None), "status": "failed"}
        failed["error"] = {"code": error.code or "server_error", "message": error.message}
        return {"type": "response.failed", "response": failed}

    def _done(self, job: Job) -> Json:
        response = self._response(job)
        if self._body.store is not False:
            answer: list[Json] = []
            for number, item in enumerate(self._blocks):
                append(answer, item, f"output.{number}", [*self._offered.values()])
            earlier, size = self._earlier, self._size + len(job.text.encode(errors="replace"))
            messages = [*(earlier.messages if earlier else ()), *self._body.messages, *answer]
            size += earlier.size if earlier else 0
            self._store.keep(self._client, self.id, StoredResponse(response, messages, size))
        return response

    def _response(self, job: Job | None) -> Json:
        """The response; `job`: when it is done."""
        body, cut = self._body, job is not None and job.finish_reason == "length"
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
            "output": self._blocks if job is not None else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": body.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "metadata": body.metadata or {},
            "usage": None if job is None else _usage(job),
        }


def _usage(job: Job) -> Json:
    counted = usage([job])
    cached = counted.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }
