"""A completions server around a real engine, OpenAI-compatible or a llama-server, which can be told to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fledge.engine import Engine, SamplingParams
from fledge.target import Target
from tests.stand_in import StandIn, listening

# Changes a reply; returns it, a status code, or "hang up" / "endless".
Fault = Callable[[int, dict[str, Any], dict[str, Any]], Any]


def as_llama_server(reply: Any) -> Any:
    """A reply as llama-server's own route writes it."""
    if not isinstance(reply, dict):
        return reply
    (choice,) = reply["choices"]
    return {
        "content": choice["text"],
        "tokens": choice["token_ids"],
        "stop_type": "eos" if choice["finish_reason"] == "stop" else "limit",
        "tokens_predicted": len(choice["token_ids"]),
    }


class CompletionServer:
    """Answers `/v1/models` and `/v1/completions` with ids, as a llama-server `/completion` alone."""

    def __init__(self, target: Target) -> None:
        self._engine = Engine(target, max_batch=2, max_context=1024, kv_tokens=4096)
        self._target = target
        self._lock = threading.Lock()
        self.requests = 0
        self.key = ""  # asked for before models are listed
        self.is_llama_server = False
        self.fault: Fault = lambda number, body, reply: reply

    def reply(self, body: dict[str, Any]) -> Any:
        """The reply to one request, with the fault applied."""
        with self._lock:
            number, self.requests = self.requests, self.requests + 1
            params = SamplingParams(
                max_tokens=body["max_tokens"],
                temperature=body["temperature"],
                top_p=body["top_p"],
                seed=body["seed"],
            )
            request = self._engine.submit(body["prompt"], params)
            completion = None
            while completion is None:
                for result in self._engine.step():
                    if result.request_id == request and result.completion is not None:
                        completion = result.completion
        ids = completion.token_ids
        ended = completion.finish_reason == "stop"
        text = self._target.tokenizer.decode(ids[:-1] if ended else ids)
        choice = {"text": text, "finish_reason": completion.finish_reason, "token_ids": ids}
        reply = {
            "choices": [choice | {"prompt_token_ids": body["prompt"]}],
            "usage": {"completion_tokens": len(ids)},
        }
        return self.fault(number, body, reply)

    @contextmanager
    def serving(self, port: int = 0) -> Iterator[str]:
        """Serve on this machine; gives the URL."""
        owner = self

        class Handler(StandIn):
            def do_GET(self) -> None:
                if owner.key and self.headers.get("Authorization") != f"Bearer {owner.key}":
                    self.answer(401, {"error": "no key"})
                elif self.path != "/v1/models":
                    self.answer(404, {"error": "no such place"})
                else:
                    owned = {"owned_by": "llamacpp"} if owner.is_llama_server else {}
                    self.answer(200, {"data": [{"id": "tiny", **owned}]})

            def do_POST(self) -> None:
                body = json.loads(self.read())
                if (self.path == "/completion") != owner.is_llama_server:
                    reply: Any = 404
                elif owner.is_llama_server:
                    reply = as_llama_server(owner.reply({**body, "max_tokens": body["n_predict"]}))
                else:
                    reply = owner.reply(body)
                if reply == "hang up":
                    self.connection.close()
                elif reply == "endless":
                    self.send_response(200)
                    self.end_headers()
                    try:
                        while True:
                            self.wfile.write(b" " * 1024)
                            time.sleep(0.005)
                    except OSError:
                        pass
                elif isinstance(reply, int):
                    self.answer(reply, {"error": "x"}, **({"Retry_After": "7"} if reply == 429 else {}))
                else:
                    self.answer(200, reply)

        with listening(Handler, port) as url:
            yield url
