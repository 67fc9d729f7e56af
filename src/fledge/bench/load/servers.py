"""The servers of a load test: running ones by address, or ones started for the test and stopped afterwards.

plain=http://localhost:8000                     already running
eagle3=start:fledge serve --port {port}         started with a free port, awaited, and stopped
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from fledge.base.child import free_port, started
from fledge.base.errors import ServerError
from fledge.bench.load.client import model_name


@dataclass(frozen=True)
class ServerSpec:
    """One server of a comparison. `command` starts it; without one it is already running at `url`."""

    name: str
    url: str | None = None
    command: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, number: int = 0) -> ServerSpec:
        """`name=http://...`, `name=start:command ... {port}`, or just an address."""
        name, separator, place = text.partition("=")
        if not separator or name.startswith(("http://", "https://", "start:")):
            name, place = f"server{number + 1}" if number else "server", text
        if place.startswith(("http://", "https://")):
            return cls(name, place.rstrip("/").removesuffix("/v1"))
        if place.startswith("start:"):
            try:
                words = tuple(shlex.split(place.removeprefix("start:")))
            except ValueError as error:
                raise ServerError(
                    f"{text!r} can't be read as a command ({error}); close its quotes"
                ) from error
            if not any("{port}" in word for word in words):
                raise ServerError(f"{text!r} doesn't say where the port goes; write {{port}} in the command")
            return cls(name, command=words)
        raise ServerError(
            f"{text!r} is not a server; write name=http://host:port or name=start:command --port {{port}}"
        )


def parse_servers(texts: Sequence[str]) -> list[ServerSpec]:
    """All servers, the baseline first."""
    specs = [ServerSpec.parse(text, number) for number, text in enumerate(texts)]
    names = [spec.name for spec in specs]
    if not specs:
        raise ServerError("no server to measure; give --server name=http://host:port")
    if len(set(names)) != len(names):
        raise ServerError(f"two servers have the same name ({', '.join(names)}); give each its own name")
    return specs


@asynccontextmanager
async def running(
    spec: ServerSpec, session: aiohttp.ClientSession, api_key: str | None, timeout_s: float, model: str | None
) -> AsyncIterator[tuple[str, str]]:
    """The server's address and model while it runs; model None: the first it lists."""
    if spec.url is not None:
        yield spec.url, model or await model_name(session, spec.url, api_key)
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with started([word.replace("{port}", str(port)) for word in spec.command], name=spec.name) as server:
        await asyncio.to_thread(server.wait_until_ready, f"{url}/v1/models", timeout_s, api_key)
        yield url, model or await model_name(session, url, api_key)
