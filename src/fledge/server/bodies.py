"""Large request bodies are parsed in a thread, so that other requests' tokens don't wait for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from fledge.server import errors

_INLINE_BYTES = 32 << 10  # a smaller body is parsed faster than another thread wakes up


class BodyRoute(APIRoute):
    """A route whose large bodies become the endpoint's model in a thread."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        form = None if self.body_field is None else self.body_field.field_info.annotation
        if not (isinstance(form, type) and issubclass(form, BaseModel)):
            return handle

        async def parsed(request: Request) -> Response:
            body = await request.body()
            if len(body) > _INLINE_BYTES:
                request._json = await asyncio.to_thread(
                    _read, form, body
                )  # where `Request.json` keeps its result
            return await handle(request)

        return parsed


def _read(form: type[BaseModel], body: bytes) -> BaseModel:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise errors.no_json() from None
    try:
        return form.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found]) from None
