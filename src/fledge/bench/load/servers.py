"""The servers of a load test, `plain=http://localhost:8000`: running ones, by address."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.base.errors import ServerError


def parse_servers(texts: Sequence[str]) -> dict[str, str]:
    """Addresses by name, the baseline first; of `name=http://...`, or just an address."""
    if not texts:
        raise ServerError("no server to measure; give --server name=http://host:port")
    servers: dict[str, str] = {}
    for number, text in enumerate(texts):
        name, separator, place = text.partition("=")
        if not separator or name.startswith(("http://", "https://")):
            name, place = f"server{number + 1}" if number else "server", text
        if not place.startswith(("http://", "https://")):
            raise ServerError(f"{text!r} is not a server; start it, and write name=http://host:port")
        if name in servers:
            raise ServerError(f"two servers are called {name}; give each its own name")
        servers[name] = place.rstrip("/").removesuffix("/v1")
    return servers
