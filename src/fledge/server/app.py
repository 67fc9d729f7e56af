"""The ASGI application: routes and their shared parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fledge import __version__
from fledge.engine import Engine
from fledge.server import errors
from fledge.server.bodies import BodyRoute
from fledge.server.errors import ApiError
from fledge.server.gate import Gate
from fledge.server.generation import Server
from fledge.server.learning import LearningRecorder, add_learning
from fledge.server.messages import CountRequest, MessagesRenderer, MessagesRequest
from fledge.server.operations import add_operations
from fledge.server.options import ServerOptions
from fledge.server.protocol import ChatRequest, CompletionRequest
from fledge.server.render import Json
from fledge.server.response_store import StoredResponse
from fledge.server.responses import ResponseRenderer, ResponsesRequest
from fledge.server.strict import StrictBody, read
from fledge.server.tokenizing import DetokenizeRequest, TokenizeRequest


class ErrorDetail(BaseModel):
    """Details of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


class PredictRequest(StrictBody):
    """Vertex AI's predict: chat or text completions as instances; parameters apply to all of them."""

    instances: list[dict[str, Any]] = Field(min_length=1, max_length=64)
    parameters: dict[str, Any] | None = None


def create_app(engine: Engine, options: ServerOptions | None = None) -> FastAPI:
    """An ASGI application that serves `engine`; it owns the engine from start-up to shutdown."""
    recorder: object = engine.recorder
    learning = recorder if isinstance(recorder, LearningRecorder) else None
    server = Server(engine, options or ServerOptions())

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        server.worker.start()
        if learning is not None:
            learning.start(engine)
        yield
        await server.worker.close()
        if learning is not None:
            await asyncio.to_thread(learning.close)
        server.tokens.close()

    app = FastAPI(
        title="fledge",
        version=__version__,
        lifespan=life,
        docs_url=None,  # the documentation pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # the gate handles such paths itself
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
    )
    app.router.route_class = BodyRoute
    app.state.server = server
    _add_predictions(app, server)  # first: Vertex AI's route may coincide with another
    _add_openai(app, server)
    _add_responses(app, server)
    _add_messages(app, server)
    _add_tokens(app, server)
    add_operations(app, server)
    if learning is not None:
        add_learning(app, server.worker.metrics, learning)
    _add_errors(app)
    paths = frozenset(getattr(route, "path", "") for route in app.routes)
    app.add_middleware(Gate, options=server.options, metrics=server.worker.metrics, routes=paths)
    if server.options.cors_origins:  # outside the gate, so that pages can read its errors, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.options.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    return app


def _add_openai(app: FastAPI, server: Server) -> None:
    @app.post("/v1/chat/completions", tags=["OpenAI"])
    @app.post("/chat/completions", include_in_schema=False)  # for clients whose base URL lacks the /v1
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await server.respond(body, request)

    @app.post("/v1/completions", tags=["OpenAI"])
    @app.post("/completions", include_in_schema=False)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await server.respond(body, request)

    def card(name: str) -> Json:
        return {
            "id": name,
            "object": "model",
            "type": "model",  # Anthropic's name of it, and of the next two
            "display_name": name,
            "created_at": server.started.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "created": int(server.started.timestamp()),
            "owned_by": "fledge",
            "root": server.target_name,
            "parent": None,
            "max_model_len": server.engine.max_context,
            "quantization": server.engine.target.quantization,
        }

    @app.post("/v1/embeddings", include_in_schema=False)
    async def embeddings() -> Json:
        raise ApiError(
            404,
            "this server generates text and makes no embeddings; ask a server that does",
            code="not_supported",
        )

    @app.get("/v1/models", tags=["OpenAI"])
    @app.get("/models", include_in_schema=False)
    async def models() -> Json:
        names = server.model_names
        pages = {"has_more": False, "first_id": names[0], "last_id": names[-1]}  # for Anthropic's clients
        return {"object": "list", "data": [card(name) for name in names], **pages}

    @app.get("/v1/models/{model:path}", tags=["OpenAI"])
    async def model(model: str) -> Json:
        return card(server.known_model(model))


def _add_responses(app: FastAPI, server: Server) -> None:
    async def conversation(body: ResponsesRequest, client: str) -> tuple[ChatRequest, StoredResponse | None]:
        """The chat that a request is, and the earlier response that it goes on from."""
        earlier = server.responses.earlier(client, body.previous_response_id)
        body.resolve(partial(server.responses.item, client))
        return await asyncio.to_thread(body.chat, earlier.messages if earlier else ()), earlier

    @app.post("/v1/responses", tags=["OpenAI"])
    @app.post("/responses", include_in_schema=False)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        """Text, functions and forms; earlier responses as far as memory goes."""
        client, size = request.state.visit.client, len(await request.body())
        chat, earlier = await conversation(body, client)
        model = server.check_model(body.model)
        rendering = ResponseRenderer(body, model, earlier, server.responses, client, size)
        return await server.respond(chat, request, rendering)

    @app.post("/v1/responses/input_tokens", tags=["OpenAI"])
    @app.post("/responses/input_tokens", include_in_schema=False)
    async def input_tokens(body: ResponsesRequest, request: Request) -> Json:
        """Number of tokens in a response's prompt."""
        server.check_model(body.model)
        chat, _ = await conversation(body, request.state.visit.client)
        return {"object": "response.input_tokens", "input_tokens": len(await server.chat_ids(chat))}

    @app.get("/v1/responses/{response_id}", tags=["OpenAI"])
    async def response(response_id: str, request: Request, stream: bool = False) -> Json:
        """A response that is still kept."""
        if stream:
            raise errors.invalid("a response that is kept isn't streamed again; leave stream out", "stream")
        return server.responses.get(request.state.visit.client, response_id)

    @app.delete("/v1/responses/{response_id}", tags=["OpenAI"])
    async def delete_response(response_id: str, request: Request) -> Json:
        """Forget a response."""
        server.responses.delete(request.state.visit.client, response_id)
        return {"id": response_id, "object": "response", "deleted": True}


def _add_messages(app: FastAPI, server: Server) -> None:
    async def chat(body: CountRequest) -> ChatRequest:
        thinks = server.engine.target.chat.asks_for("enable_thinking")
        return await asyncio.to_thread(body.chat, thinks=thinks)

    @app.post("/v1/messages", tags=["Anthropic"])
    async def messages(body: MessagesRequest, request: Request) -> Response:
        """Text, thinking and tools."""
        rendering = MessagesRenderer(server.check_model(body.model))
        return await server.respond(await chat(body), request, rendering)

    @app.post("/v1/messages/count_tokens", tags=["Anthropic"])
    async def count_tokens(body: CountRequest) -> Json:
        """Number of tokens in a prompt."""
        server.check_model(body.model)
        return {"input_tokens": len(await server.chat_ids(await chat(body)))}


def _add_tokens(app: FastAPI, server: Server) -> None:
    @app.post("/tokenize", tags=["Tokens"])
    async def tokenize(body: TokenizeRequest) -> Json:
        server.check_model(body.model)
        if body.messages is not None:
            tools = [tool for tool in body.tools or () if tool is not None]
            ids = await server.tokens.chat(body.messages, body.chat_template_kwargs, tools)
        else:
            ids = await server.tokens.text(body.prompt or "", special=body.add_special_tokens is not False)
        names = server.tokens.names(ids) if body.return_token_strs else None
        return {
            "count": len(ids),
            "max_model_len": server.engine.max_context,
            "tokens": ids,
            "token_strs": names,
        }

    @app.post("/detokenize", tags=["Tokens"])
    async def detokenize(body: DetokenizeRequest) -> Json:
        server.check_model(body.model)
        server.tokens.check(body.tokens, "tokens")
        return {"prompt": await server.tokens.decode(body.tokens)}


def _add_predictions(app: FastAPI, server: Server) -> None:
    """The routes of clouds: SageMaker's, and Vertex AI's if it has named one."""

    @app.post("/invocations", tags=["SageMaker"])
    async def invocations(body: Json, request: Request) -> Response:
        """A chat or text completion."""
        return await server.respond(await asyncio.to_thread(_completion, body), request)

    if not server.options.predict_route:
        return

    @app.post(server.options.predict_route, tags=["Vertex AI"], response_model=None)
    async def predict(body: Json, request: Request) -> Response | Json:
        """Vertex AI's predict: {"instances": [...], "parameters": {...}}, instances being chat or text completions.

        rawPredict and streamRawPredict pass a chat or text completion through unchanged; it is answered as such.
        """
        if "instances" not in body:
            return await server.respond(await asyncio.to_thread(_completion, body), request)
        requests = await asyncio.to_thread(_instances, body)
        if any(each.stream for each in requests):
            raise errors.invalid("predictions aren't streamed; leave stream out", "stream")
        return {"predictions": await server.predictions(requests, request)}


def _instances(body: Json) -> list[ChatRequest | CompletionRequest]:
    batch = read(PredictRequest, body)
    return [_completion({**(batch.parameters or {}), **instance}) for instance in batch.instances]


def _completion(fields: Json) -> ChatRequest | CompletionRequest:
    fields = {key: value for key, value in fields.items() if key != "@requestFormat"}  # added by Vertex AI
    return read(ChatRequest, fields) if "messages" in fields else read(CompletionRequest, fields)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return error.response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def wrong_body(request: Request, error: RequestValidationError) -> Response:
        return errors.from_validation(error.errors()).response(request.url.path)

    @app.exception_handler(RecursionError)  # parsed, but too deep for later code
    async def too_deep(request: Request, error: RecursionError) -> Response:
        refusal = errors.invalid("the body is nested too deeply; send a flatter one")
        return refusal.response(request.url.path)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        if error.status_code == 400:  # not UTF-8, or numbers or nesting that the JSON parser rejects
            return errors.no_json().response(path)
        message = str(error.detail)
        if error.status_code == 404:
            message = errors.no_route(path, (getattr(route, "path", "") for route in app.routes))
        elif error.status_code == 405:
            message = "this method isn't allowed for this route"
        return ApiError(error.status_code, message, headers=error.headers).response(path)


def _schema(app: FastAPI) -> Json:
    """The published OpenAPI, with this server's error format instead of the framework's."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        app.openapi_schema = schema
    return app.openapi_schema
