"""Every error a client sees, in OpenAI's shape: {"error": {message, type, param, code}}; Anthropic's on its routes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.responses import Response

from fledge.base.errors import FledgeError, did_you_mean
from fledge.engine import GrammarsFullError

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_ANTHROPIC = "/v1/messages"
_ANTHROPIC_TYPES = {**_TYPES, 413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}
# Pydantic's names for the alternatives of a field with several forms; some are class names.
_ALTERNATIVE = re.compile(r"(constrained-)?(str|int|float|bool|dict|list\[.*\])|[A-Z][a-z]+[A-Z]\w*")
# Descriptions of such fields: an error about one alternative alone would mislead.
_FORMS = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "input_ids": "a list of token ids, or a list of such lists",
    "text": "a text, or a list of texts",
    "stop": "a text, or a list of texts and token ids",
    "content": "a text, or a list of parts of type text",
    "tool_choice": "none, auto, required, or the function to call",
}


# Fields of other servers, by the one here with the same purpose.
_INSTEAD = {
    "content": "the text goes in prompt",
    "format": "say it as response_format",
    "grammar": "send a grammar in Lark's form as structured_outputs.grammar; llama.cpp's GBNF isn't read",
    "json_schema": "send the schema as response_format",
    "max_length": "use max_tokens",
    "max_new_tokens": "use max_tokens",
    "regex": "send it as structured_outputs.regex",
}
# Routes of llama.cpp, Ollama and others, by the one here with the same purpose.
_ROUTES = {
    "/completion": "/v1/completions",
    "/generate": "/v1/completions",
    "/apply-template": "/tokenize, which takes messages",
    "/props": "/server_info",
    "/slots": "/load",
    "/api/chat": "/v1/chat/completions",
    "/api/generate": "/v1/completions",
    "/api/ps": "/v1/models",
    "/api/show": "/server_info",
    "/api/tags": "/v1/models",
    "/api/version": "/version",
    "/docs": "/openapi.json",
    "/redoc": "/openapi.json",
}
_FORM = re.compile(r"\bstructured_outputs(\.\w+)?")
_FORMS_RETRY_S = 5  # seconds in Retry-After when too many grammars are in use


class ApiError(Exception):
    """An error response. Messages say what is wrong and what to do; they never repeat a prompt."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic_body(self) -> dict[str, Any]:
        """The JSON body, as Anthropic's clients read it."""
        other = "invalid_request_error" if self.status < 500 else "api_error"
        kind = _ANTHROPIC_TYPES.get(self.status, other)
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def response(self, path: str) -> Response:
        """The HTTP response to a request for this path."""
        body = self.anthropic_body() if path.startswith(_ANTHROPIC) else self.body()
        return Response(json.dumps(body), self.status, headers=self.headers, media_type="application/json")


def no_route(path: str, routes: Iterable[str]) -> str:
    """The message about a path that is none of the routes."""
    if here := _ROUTES.get(path.rstrip("/")):
        return f"no such route; use {here}"
    others = "; OpenAI's routes begin with /v1, and /openapi.json lists all"
    similar = did_you_mean(path, routes) if len(path) < 50 else ""
    return f"no such route{similar or others}"


def _unavailable(message: str, code: str, seconds: int) -> ApiError:
    """Nothing is wrong with the request; it may be sent again in so many seconds."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(seconds)})


def overloaded(waiting: int, seconds: int) -> ApiError:
    """The queue is full."""
    message = f"the server is overloaded: {waiting} answers are waiting; try again in {seconds} s"
    return _unavailable(message, "overloaded", seconds)


def draining(seconds: int) -> ApiError:
    """The server is about to stop."""
    message = "the server is shutting down; try again, another instance may answer"
    error = _unavailable(message, "shutting_down", seconds)
    error.headers["Connection"] = "close"
    return error


def engine_failed() -> ApiError:
    """A step of the engine raised; the request is lost, the engine continues."""
    return ApiError(
        500,
        "the engine failed while processing this request; it has been reset, try again",
        code="engine_failed",
    )


def too_complex() -> ApiError:
    """The grammar of the answer's form is beyond llguidance's limits where the answer has got to."""
    return ApiError(
        400,
        "the answer can't go on in the form it must have: its schema or grammar allows too many ways here for the "
        "parser's limits; make it simpler, for instance with fewer optional properties in one object",
        code="grammar_too_complex",
    )


def too_many_forms() -> ApiError:
    """Answers in progress have as many different grammars as memory allows."""
    message = f"the answers in progress have too many different schemas and grammars; try again in {_FORMS_RETRY_S} s"
    return _unavailable(message, "overloaded", _FORMS_RETRY_S)


def timed_out(seconds: float) -> ApiError:
    """The request exceeded the server's time limit."""
    return ApiError(
        504,
        f"the answer wasn't finished within {seconds:g} s; request fewer tokens or try again later",
        code="timeout",
    )


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request is invalid."""
    return ApiError(400, message, param=param, code=code)


@contextmanager
def refused(param: str | None = None, form: str | None = None) -> Iterator[None]:
    """Turn a FledgeError raised inside into an error of the request; `param`: the field it is about.

    `form`: what the client calls that which the engine calls structured_outputs.
    """
    try:
        yield
    except GrammarsFullError as error:
        raise too_many_forms() from error
    except FledgeError as error:
        message = str(error)
        if form is not None:
            message = _FORM.sub(lambda _: form, message)
        raise invalid(message, param) from error


def no_json() -> ApiError:
    """The body can't be parsed."""
    return invalid("the body isn't valid JSON; send one JSON object in UTF-8", code="invalid_json")


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first error pydantic found, without the input."""
    first = _closest(errors)
    place = _place(first)
    kind, name = first.get("type"), ".".join(place)
    if kind == "json_invalid":
        return no_json()
    if kind == "extra_forbidden":
        what_to_do = _INSTEAD.get(name, "leave it out")
        return invalid(f"{name} isn't supported by this server; {what_to_do}", name, "unsupported_parameter")
    if kind == "missing":
        return invalid(f"{name or 'the body'} is missing", name or None, "missing_required_parameter")
    message = str(first.get("msg", "is wrong")).removeprefix("Value error, ")
    field = next((part for part in reversed(place) if not part.isdigit()), "")
    if field in _FORMS and len(_place(first)) < len(_parts(first)):
        message += f"; it must be {_FORMS[field]}"
    return invalid(f"{name or 'the body'}: {message}", name or None)


def _closest(errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first error; for a field with several forms, that of the form the input comes closest to.

    That is an error other than a wrong type, which all other forms have too, and the most deeply nested one.
    """
    first = _parts(errors[0])
    at = next((n for n, part in enumerate(first) if _ALTERNATIVE.fullmatch(part)), None)
    if at is None:
        return errors[0]
    same = [error for error in errors if _parts(error)[:at] == first[:at]]
    return max(same, key=lambda error: (not str(error.get("type")).endswith("_type"), len(_parts(error))))


def _parts(error: Mapping[str, Any]) -> list[str]:
    return [str(part) for part in error.get("loc", ()) if part != "body"]


def _place(error: Mapping[str, Any]) -> list[str]:
    """The error's location, in the client's terms."""
    return [part for part in _parts(error) if not _ALTERNATIVE.fullmatch(part)]
