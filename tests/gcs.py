"""A Google Cloud Storage emulator behind a proxy that misbehaves on purpose.

    fledge -> gcsfs -> proxy (byte ranges; 503, reset, cut off, slow) -> emulator (in memory)

The emulator serves whole objects only; the proxy adds byte ranges, as the real service has them.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from gcp_storage_emulator.server import create_server

Fault = Literal["503", "reset", "cut", "slow"]
BUCKET = "bucket"
_SLOW = 0.1  # seconds


class Proxy(ThreadingHTTPServer):
    """Forwards requests to the emulator; `plan(number)` may name a fault for the request with this number."""

    daemon_threads = True

    def __init__(self, emulator_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.emulator_port = emulator_port
        self.plan: Callable[[int], Fault | None] = lambda number: None
        self.requests = 0
        self.faults: list[Fault] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_fault(self) -> Fault | None:
        with self.lock:
            self.requests += 1
            fault = self.plan(self.requests)
            if fault:
                self.faults.append(fault)
            return fault

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _forward(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        fault = self.server.next_fault()
        if fault == "503":
            self._answer(503, b'{"error": {"code": 503, "message": "try later"}}', {})
            return
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if fault == "slow":
            time.sleep(_SLOW)
        status, data, headers = self._ask(body)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and status == 200:
            total, start = len(data), int(wanted[1])
            data = data[start : int(wanted[2]) + 1 if wanted[2] else total]
            headers = {
                k: v for k, v in headers.items() if k.lower() != "x-goog-hash"
            }  # it is the whole object's
            headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{total}"
            status = 206
        self._answer(status, data, headers, cut=fault == "cut")

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _forward

    def _ask(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.emulator_port)
        kept = {
            k: v for k, v in self.headers.items() if k.lower() not in ("host", "range", "accept-encoding")
        }
        connection.request(self.command, self.path, body, kept)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        drop = ("content-length", "transfer-encoding", "connection", "server", "date")
        return answer.status, data, {k: v for k, v in answer.getheaders() if k.lower() not in drop}

    def _answer(self, status: int, data: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            # Upload sessions name the emulator's own address.
            self.send_header(
                name, value.replace(f":{self.server.emulator_port}", f":{self.server.server_address[1]}")
            )
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if cut:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_gcs() -> Iterator[Proxy]:
    """An empty emulated bucket; STORAGE_EMULATOR_HOST is the caller's to set to the proxy's url."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    emulator = create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    emulator.start()
    proxy = Proxy(port)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        emulator.stop()
