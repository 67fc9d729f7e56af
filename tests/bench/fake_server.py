"""An OpenAI-compatible server whose latencies are known: chunks leave at fixed times after a request came in.

    python -m tests.bench.fake_server --port 8123 --ttft-ms 200 --itl-ms 25 --tokens 33

Deadlines are absolute, so what one chunk is late doesn't add up. `--per-chunk 3` sends three tokens a chunk, as a
server that speculates does, and counts drafts on /metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from fledge.base.child import free_port, started


class Fake:
    """Answers every request alike."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.drafts = self.accepted = 0
        self.bodies: list[dict] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/bodies", lambda request: web.json_response(self.bodies))
        app.router.add_post("/v1/chat/completions", self.chat)
        return app

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def metrics(self, request: web.Request) -> web.Response:
        if self.options.per_chunk == 1:
            return web.Response(text="# nothing\nprocess_cpu_seconds_total 1.5\n")
        lines = [
            f'vllm:spec_decode_num_drafts_total{{engine="0"}} {self.drafts}',
            f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {4 * self.drafts}',
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {self.accepted}',
        ]
        for place in range(self.options.per_chunk - 1):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f'{name}{{engine="0",position="{place}"}} {self.drafts}')
        return web.Response(text="\n".join(lines) + "\n")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        came = time.perf_counter()
        body = await request.json()
        self.bodies.append(body)
        if self.options.fail:
            return web.json_response({"error": {"message": "out of memory"}}, status=500)
        if self.options.refuse_counts and "continuous_usage_stats" in body["stream_options"]:
            return web.json_response({"error": {"message": "unknown"}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        options, tokens = self.options, min(self.options.tokens, body["max_tokens"])
        sent, chunk = 0, 0
        while sent < tokens:
            # The first chunk holds the prompt's own token, with a round's if they were sent together.
            count = min(options.per_chunk, tokens - sent) if sent else options.first_chunk
            await asyncio.sleep(came + (options.ttft_ms + chunk * options.itl_ms) / 1e3 - time.perf_counter())
            sent, chunk = sent + count, chunk + 1
            self.drafts, self.accepted = self.drafts + (chunk > 1), self.accepted + (count - 1)
            value: dict = {"choices": [{"index": 0, "delta": {"content": f"w{sent} " * count}}]}
            if body.get("stream_options", {}).get("continuous_usage_stats") and not options.no_usage:
                value["usage"] = {"prompt_tokens": 7, "completion_tokens": sent}
            await response.write(f"data: {json.dumps(value)}\n\n".encode())
        if not options.no_usage:
            usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": sent}}
            await response.write(f"data: {json.dumps(usage)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@contextmanager
def fake(*options: str) -> Iterator[str]:
    """A fake server with these options, in a process of its own; gives its address."""
    port = str(free_port())
    command = [sys.executable, "-m", "tests.bench.fake_server", "--port", port, *options]
    with started(command, name="the fake server") as server:
        server.wait_until_ready(f"http://127.0.0.1:{port}/v1/models", 60.0)
        yield f"http://127.0.0.1:{port}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--per-chunk", type=int, default=1)
    parser.add_argument("--first-chunk", type=int, default=1)
    parser.add_argument("--refuse-counts", action="store_true")
    parser.add_argument("--no-usage", action="store_true")
    parser.add_argument("--fail", action="store_true")
    options = parser.parse_args()
    web.run_app(Fake(options).app(), host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
