"""A small HTTP server in a thread, in the place of an engine's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StandIn(BaseHTTPRequestHandler):
    """What answers requests; a test defines `do_GET` and `do_POST`."""

    def read(self) -> bytes:
        """The request's body."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status: int, value: Any, **headers: str) -> None:
        """Send bytes as they are, text in UTF-8, and anything else as JSON."""
        text = value if isinstance(value, str | bytes) else json.dumps(value)
        data = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        for name, content in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name.replace("_", "-"), content)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def listening(handler: type[StandIn], port: int = 0) -> Iterator[str]:
    """Serve on this machine; gives the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
