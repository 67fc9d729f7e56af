"""Emulators of Google Cloud Storage and S3 behind a proxy that misbehaves on purpose.

    fledge -> gcsfs or s3fs -> proxy (byte ranges; 503, 500, 429, reset, cut off, slow) -> emulator (in memory)

Google's emulator serves whole objects only; the proxy adds byte ranges, as the real services have them.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from gcp_storage_emulator.server import create_server

Fault = Literal["503", "500", "429", "403", "kept", "reset", "cut", "slow"]
BUCKET = "bucket"
_CODES = {"503": "SlowDown", "500": "InternalError", "429": "TooManyRequests", "403": "AccessDenied"}
_SLOW = 0.03  # seconds


class Proxy(ThreadingHTTPServer):
    """Forwards requests to the emulator; `plan(number)` may name a fault for the request with this number."""

    daemon_threads = True

    def __init__(self, scheme: str, emulator_port: int, failure: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bucket = f"{scheme}://{BUCKET}"
        self.emulator_port = emulator_port
        self.failure = failure  # the body of an HTTP status, with its code in S3
        self.lock = threading.Lock()
        self.behave()

    def behave(self) -> None:
        """Forget the plan, and count requests and faults from nothing."""
        self.plan: Callable[[int], Fault | None] = lambda number: None
        self.requests = 0
        self.faults: list[Fault] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What leads the store's client here."""
        if self.bucket.startswith("gs"):
            return {"STORAGE_EMULATOR_HOST": self.url}
        keys = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        files = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
        return {"AWS_ENDPOINT_URL": self.url} | keys | files

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
    disable_nagle_algorithm = True  # a body must not wait until its headers are acknowledged, 40 ms later
    server: Proxy

    def _forward(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        fault = self.server.next_fault()
        if fault in _CODES:
            text = self.server.failure.format(status=fault, code=_CODES[fault])
            self._answer(int(fault), text.encode(), {})
            return
        if fault == "kept" and self.command == "POST":  # S3's answer to a request to delete
            reason = b"<Error><Key>a.bin</Key><Code>AccessDenied</Code><Message>no rights</Message></Error>"
            self._answer(200, b"<DeleteResult>" + reason + b"</DeleteResult>", {})
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
                k: v
                for k, v in headers.items()
                if not k.lower().startswith(("x-goog-hash", "x-amz-checksum"))
            }  # they are the whole object's
            headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{total}"
            status = 206
        self._answer(status, data, headers, cut=fault == "cut")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _forward

    def _ask(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.emulator_port)
        kept = {
            k: v for k, v in self.headers.items() if k.lower() not in ("host", "range", "accept-encoding")
        }
        connection.request(self.command, self.path, body, kept)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        drop = ["transfer-encoding", "connection", "server", "date"]
        drop += ["content-length"] if self.command != "HEAD" else []  # there it is the object's
        return answer.status, data, {k: v for k, v in answer.getheaders() if k.lower() not in drop}

    def _answer(self, status: int, data: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            # Upload sessions name the emulator's own address.
            self.send_header(
                name, value.replace(f":{self.server.emulator_port}", f":{self.server.server_address[1]}")
            )
        if self.command != "HEAD" or "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_gcs() -> Iterator[Proxy]:
    """An empty emulated bucket of Google's; the proxy's `environment` is the caller's to set."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    emulator = create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    emulator.start()
    try:
        with _served(Proxy("gs", port, '{{"error": {{"code": {status}, "message": "try later"}}}}')) as proxy:
            yield proxy
    finally:
        emulator.stop()


@contextmanager
def running_s3() -> Iterator[Proxy]:
    """The same of S3."""
    from moto.server import ThreadedMotoServer

    emulator = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    emulator.start()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    try:
        port = emulator.get_host_and_port()[1]
        body = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>try later</Message></Error>"
        with _served(Proxy("s3", port, body)) as proxy:
            for method, place in (("POST", "moto-api/reset"), ("PUT", BUCKET)):
                urllib.request.urlopen(urllib.request.Request(f"{proxy.url}/{place}", method=method)).close()
            yield proxy
    finally:
        emulator.stop()


@contextmanager
def _served(proxy: Proxy) -> Iterator[Proxy]:
    threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
