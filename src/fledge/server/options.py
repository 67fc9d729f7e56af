"""The server's options: limits, keys, addresses; from flags, the environment and Vertex AI's contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fledge.base.errors import ServerError
from fledge.server.call_forms import CALL_FORMS
from fledge.server.reader import REASONING_PARSERS

KEYS_VARIABLE = "FLEDGE_API_KEYS"
_SHORTEST_KEY = 8
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
_COMMENT = re.compile(r"(^|\s)#.*")  # a key may hold a #
_ROUTE = re.compile(r"/[A-Za-z0-9._~/:-]*")


@dataclass(frozen=True)
class ServerOptions:
    """Limits and names of one server. Times are seconds, sizes bytes."""

    host: str = "127.0.0.1"
    port: int = 8000
    target: str | None = None  # the target as the user named it; None: its own name
    model_names: tuple[str, ...] = ()  # names clients may use for the model; empty: the target's own name
    strict_model_name: bool = False  # other names get a 404; else any name means this model
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # empty: no key needed
    cors_origins: tuple[str, ...] = ()  # other origins whose web pages may use it; "*": all
    max_queue: int = 1024  # answers that may wait for a place in the batch
    max_body: int = 8 << 20  # per request
    max_answers: int = 128  # prompts times n of one request
    request_timeout: float = 600.0  # from a request's arrival to its last byte
    body_timeout: float = 30.0  # for the arrival of a request's body
    stall_timeout: float = 60.0  # after which a client that reads nothing is dropped
    drain_timeout: float = 30.0  # for running answers to finish after SIGTERM
    tool_call_parser: str = "auto"  # format of the target's calls; auto: as in its chat template
    reasoning_parser: str | None = None  # format of its reasoning; None: reasoning is part of the answer
    health_route: str | None = None  # besides /health
    predict_route: str | None = None  # Vertex AI's

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ServerError(f"invalid port {self.port}; use 1 to 65535, or 0 for any free one")
        if self.max_queue < 1 or self.max_body < 1 or self.max_answers < 1:
            raise ServerError("max_queue, max_body and max_answers must be at least 1")
        if not all(name.strip() for name in self.model_names):
            raise ServerError("a model name is empty; give it a name, or leave the option out")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ServerError(f"{origin!r} is not an origin; use * or scheme://host[:port]")
        parsers = {
            "tool_call_parser": (self.tool_call_parser, ("auto", *CALL_FORMS)),
            "reasoning_parser": (self.reasoning_parser, (None, *REASONING_PARSERS)),
        }
        for option, (value, choices) in parsers.items():
            if value not in choices:
                raise ServerError(
                    f"{option} {value!r} is unknown; use one of {', '.join(filter(None, choices))}"
                )
        times = (self.request_timeout, self.body_timeout, self.stall_timeout, self.drain_timeout)
        if not all(0 < seconds < 1e7 for seconds in times):
            raise ServerError("timeouts are seconds above 0; give the server positive numbers")
        for key in self.api_keys:
            if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
                raise ServerError(
                    f"an API key is shorter than {_SHORTEST_KEY} characters, or holds others than printable ASCII "
                    "without spaces; give longer, plainer ones"
                )


def read_keys(file: Path | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """API keys from $FLEDGE_API_KEYS (comma-separated) and from a file (one per line, # starts a comment)."""
    variable = environment.get(KEYS_VARIABLE, "")
    keys = [key.strip() for key in variable.split(",")]
    if variable and not any(keys):
        raise ServerError(f"{KEYS_VARIABLE} is set, but holds no API key; set it to keys, or unset it")
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ServerError(f"can't read the API keys in {file} ({error}); check the path") from error
        file_keys = [_COMMENT.sub("", line).strip() for line in lines]
        if not any(file_keys):
            raise ServerError(f"{file} holds no API key; write one per line, or leave the option out")
        keys += file_keys
    return tuple(dict.fromkeys(key for key in keys if key))


def from_vertex(options: ServerOptions, environment: Mapping[str, str]) -> ServerOptions:
    """The options required by Vertex AI's custom-container contract; unchanged if its variables are missing.

    AIP_HTTP_PORT is the port to listen on, on all interfaces; AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE are paths.
    """
    port, health, predict = (
        environment.get(f"AIP_{name}") for name in ("HTTP_PORT", "HEALTH_ROUTE", "PREDICT_ROUTE")
    )
    if port:
        if not port.isdecimal():
            raise ServerError(f"AIP_HTTP_PORT is {port!r}, which is not a port; it must be a number")
        options = replace(options, port=int(port), host="0.0.0.0")
    for name, route in (("AIP_HEALTH_ROUTE", health), ("AIP_PREDICT_ROUTE", predict)):
        if route and not _ROUTE.fullmatch(route):
            raise ServerError(
                f"{name} is {route!r}, which is not a path; it must begin with / and contain no braces"
            )
    return replace(options, health_route=health or None, predict_route=predict or None)
