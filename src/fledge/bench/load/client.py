"""One streamed request to an OpenAI-compatible server, with the arrival time of each part of its answer.

    sent                first chunk                                  last chunk      [DONE]
     |------- TTFT -------|---- gap ----|---- gap ----| ... ---- gap ----|
                          |------------- (tokens - 1) * TPOT ------------|
     |------------------------------- E2E ------------------------------|

With speculation a chunk may contain several tokens, including the first. If the server reports the tokens of each
chunk, TPOT covers those after the first chunk, and gaps become inter-token latencies. If it only counts them at the end
(`usage`), TPOT counts the first chunk as one token, as vLLM's and SGLang's benchmarks do, and gaps are per chunk.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError  # for overlong lines: not a ClientError

from fledge.base.errors import ServerError

_MAX_LINE = 1 << 20


@dataclass
class RequestRecord:
    """Record of one request. Times are seconds on the host's monotonic clock."""

    question_id: str
    turn: int
    sent: float = 0.0  # the start of all its latencies
    arrivals: list[float] = field(default_factory=list)  # of chunks with text
    # Tokens so far at each arrival, if the server reports them.
    arrival_tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    counted: bool = False  # output_tokens come from the server; otherwise one per chunk
    text: str = ""  # thinking and answer
    content: str = ""  # the answer alone
    finish_reason: str | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """True if an answer arrived."""
        return self.error is None and bool(self.arrivals)

    @property
    def ttft(self) -> float:
        """Seconds to the first chunk."""
        return self.arrivals[0] - self.sent

    @property
    def e2e(self) -> float:
        """Seconds to the last chunk."""
        return self.arrivals[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first chunk's; None without any."""
        later = self.output_tokens - (self.arrival_tokens[0] if self.arrival_tokens else 1)
        return (self.arrivals[-1] - self.arrivals[0]) / later if later > 0 else None

    @property
    def itls(self) -> list[float]:
        """Seconds between tokens: a chunk's gap divided among its tokens if the server reports them, else the gap."""
        gaps = [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]
        if not self.arrival_tokens:
            return gaps
        counts = [b - a for a, b in zip(self.arrival_tokens, self.arrival_tokens[1:], strict=False)]
        return [gap / count for gap, count in zip(gaps, counts, strict=True) for _ in range(count)]


@dataclass(frozen=True)
class Call:
    """Settings for calling a server: address, model and sampling."""

    url: str  # http://host:port, without /v1
    model: str
    max_tokens: int
    temperature: float
    ignore_eos: bool
    token_counts: bool
    api_key: str | None
    timeout_s: float

    def body(
        self, messages: Sequence[dict[str, str]], extras: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The JSON of a chat completion; `extras` are further fields, such as `tools`."""
        body: dict[str, Any] = {
            **(extras or {}),
            "model": self.model,
            "messages": list(messages),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.token_counts:
            body["stream_options"]["continuous_usage_stats"] = True
        return body

    @property
    def headers(self) -> dict[str, str]:
        """Authorization, if there is a key."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def open_session() -> aiohttp.ClientSession:
    """A session without a connection limit: the load generator decides how many are open."""
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=600)
    return aiohttp.ClientSession(connector=connector, read_bufsize=_MAX_LINE)


async def send(
    session: aiohttp.ClientSession,
    call: Call,
    messages: Sequence[dict[str, str]],
    record: RequestRecord,
    extras: Mapping[str, Any] | None = None,
) -> RequestRecord:
    """Send one chat completion and fill in its record. Failures are stored in `record.error`, not raised."""
    record.sent = time.perf_counter()
    timeout = aiohttp.ClientTimeout(total=call.timeout_s)
    try:
        async with session.post(
            f"{call.url}/v1/chat/completions",
            json=call.body(messages, extras),
            headers=call.headers,
            timeout=timeout,
        ) as response:
            if response.status != 200:
                record.error = f"HTTP {response.status}: {_short(await response.text())}"
                return record
            await _read_stream(response, record)
    except asyncio.TimeoutError:  # noqa: UP041 - aiohttp's own timeouts derive from it on 3.11 too
        record.error = f"no complete answer within {call.timeout_s:.0f} s"
    except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
        record.error = _short(f"{type(error).__name__}: {error}")
    except (AttributeError, TypeError) as error:
        record.error = _short(f"the server sent something other than a chat completion's chunks ({error})")
    if record.error is None and not record.arrivals:
        record.error = "the answer is empty"
    if not record.counted:
        record.output_tokens = len(record.arrivals)
    return record


async def _read_stream(response: aiohttp.ClientResponse, record: RequestRecord) -> None:
    """Server-sent events, one JSON object in each `data:` line, up to `[DONE]` or a finish reason."""
    ended = False
    async for line in response.content:
        now = time.perf_counter()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            ended = True
            break
        chunk = json.loads(data)
        if chunk.get("error") is not None:
            record.error = _short(json.dumps(chunk["error"]))
            break
        _take(chunk, now, record)
    if record.error is None and not ended and record.finish_reason is None:
        streamed = bool(record.arrivals) or response.content_type == "text/event-stream"
        record.error = (
            "the answer was cut off: neither [DONE] nor a finish reason arrived"
            if streamed
            else f"the server sent {response.content_type}, not a stream of events"
        )


def _take(chunk: dict[str, Any], now: float, record: RequestRecord) -> None:
    usage = chunk.get("usage")
    if usage:
        record.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        record.output_tokens = int(usage.get("completion_tokens") or 0)
        record.counted = True
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        # Thinking is `reasoning` in newer servers, `reasoning_content` in older ones.
        thinking = delta.get("reasoning") or delta.get("reasoning_content")
        content = delta.get("content") or choice.get("text") or ""
        calls = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
        called = "".join((call.get("name") or "") + (call.get("arguments") or "") for call in calls)
        if text := (thinking or "") + content + called:
            record.text += text
            record.content += content
            record.arrivals.append(now)
            if usage:
                record.arrival_tokens.append(record.output_tokens)
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
    if len(record.arrival_tokens) != len(record.arrivals):
        record.arrival_tokens = []  # reported for some chunks only: useless


async def model_name(session: aiohttp.ClientSession, url: str, api_key: str | None = None) -> str:
    """The first model of `/v1/models`."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    place, timeout = f"{url}/v1/models", aiohttp.ClientTimeout(total=10)
    try:
        async with session.get(place, headers=headers, timeout=timeout) as response:
            status, text = response.status, await response.text()
    except (asyncio.TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:  # noqa: UP041
        raise ServerError(
            f"no server responds at {place} ({_short(str(error) or type(error).__name__)}); "
            "start it, or correct the address"
        ) from error
    if status != 200:
        raise ServerError(
            f"{place} answers HTTP {status}: {_short(text)}; correct the address, or OPENAI_API_KEY, which is "
            f"{'sent' if api_key else 'not set'}"
        )
    try:
        return str(json.loads(text)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ServerError(f"{place} names no model; give an OpenAI-compatible server that has one") from error


def _short(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
