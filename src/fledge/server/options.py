"""The server's options: limits, keys, addresses; from flags, the environment and Vertex AI's contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from fledge.base.errors import FledgeError, ServerError
from fledge.base.options import Flag, Options, Switch, Whole

KEYS_VARIABLE = "FLEDGE_API_KEYS"
_SHORTEST_KEY = 8  # characters of an API key
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
_COMMENT = re.compile(r"(^|\s)#.*")  # a key may hold a #
_ROUTE = re.compile(r"/[A-Za-z0-9._~/:-]*")

Seconds = Annotated[float, Field(gt=0, lt=1e7)]


class ListenOptions(Options):
    """Where any engine's server listens, and how long it takes to stop."""

    error: ClassVar[type[FledgeError]] = ServerError

    host: Annotated[str, Flag(first=True)] = Field(
        "127.0.0.1", description="address to listen on; 0.0.0.0 is all of them"
    )
    port: Annotated[Whole, Flag(first=True)] = Field(
        8000, ge=0, le=65535, description="port to listen on; 0 is any free one"
    )
    drain_timeout: Seconds = Field(30.0, description="seconds that running answers get after SIGTERM")


class ServerOptions(ListenOptions):
    """Limits and names of one server."""

    target: Annotated[str | None, Flag(hidden=True)] = Field(
        None, description="the target as the user named it; left out, its own name"
    )
    model_names: Annotated[
        tuple[str, ...], Flag(first=True, names=("--model-name", "--served-model-name"))
    ] = Field(
        (),
        description="the model's name for clients; repeatable; by default TARGET, of a path the last part",
    )
    strict_model_name: Switch = Field(False, description="answer 404 to requests that name another model")
    api_keys: Annotated[tuple[str, ...], Flag(hidden=True)] = Field(
        (), repr=False, description="keys that clients need; empty: none"
    )
    cors_origins: Annotated[tuple[str, ...], Flag(names=("--cors-origin",))] = Field(
        (), description="origin whose web pages may use the server, * is any; repeatable"
    )
    max_queue: Whole = Field(1024, ge=1, description="requests that may wait; more get a 503")
    max_body_mb: float = Field(8.0, gt=0, allow_inf_nan=False, description="largest body of a request, in MB")
    max_answers: Whole = Field(128, ge=1, description="prompts times n of one request, at most")
    request_timeout: Seconds = Field(600.0, description="seconds an answer may take, waiting included")
    body_timeout: Seconds = Field(30.0, description="seconds in which a request's body must arrive")
    stall_timeout: Seconds = Field(
        60.0, description="seconds after which a client that reads nothing is disconnected"
    )
    tool_call_parser: str = Field(
        "auto",
        description="format of function calls: hermes, llama3_json, mistral, or auto: as its chat template does",
    )
    reasoning_parser: str | None = Field(
        None,
        description="qwen3 or deepseek_r1: return the text between <think> tags as reasoning; with deepseek_r1 an "
        "answer begins with it even without a tag",
    )
    log_format: Literal["text", "json"] = Field("text", description="form of the log's lines")
    health_route: Annotated[str | None, Flag(hidden=True)] = Field(None, description="besides /health")
    predict_route: Annotated[str | None, Flag(hidden=True)] = Field(None, description="Vertex AI's")

    @property
    def max_body(self) -> int:
        """Bytes of a request's body, at most."""
        return int(self.max_body_mb * 2**20)

    @field_validator("model_names")
    @classmethod
    def _named(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(name.strip() for name in names):
            raise ValueError("a model name is empty; give it a name, or leave the option out")
        return names

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is not an origin; use * or scheme://host[:port]")
        return origins

    @field_validator("tool_call_parser")
    @classmethod
    def _known_calls(cls, parser: str) -> str:
        from fledge.server.call_forms import CALL_FORMS

        return _one_of(parser, ("auto", *CALL_FORMS))

    @field_validator("reasoning_parser")
    @classmethod
    def _known_reasoning(cls, parser: str | None) -> str | None:
        from fledge.server.reader import REASONING_PARSERS

        return parser and _one_of(parser, tuple(REASONING_PARSERS))

    @field_validator("api_keys")
    @classmethod
    def _long_enough(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
                raise ValueError(
                    f"an API key is shorter than {_SHORTEST_KEY} characters, or holds others than printable ASCII "
                    "without spaces; give longer, plainer ones"
                )
        return keys


def _one_of(value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"use one of {', '.join(choices)}")
    return value


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
        options = options.changed(port=int(port), host="0.0.0.0")
    for name, route in (("AIP_HEALTH_ROUTE", health), ("AIP_PREDICT_ROUTE", predict)):
        if route and not _ROUTE.fullmatch(route):
            raise ServerError(
                f"{name} is {route!r}, which is not a path; it must begin with / and contain no braces"
            )
    return options.changed(health_route=health or None, predict_route=predict or None)
