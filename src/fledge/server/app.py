"""The ASGI application: routes and their shared parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fledge import __version__
from fledge.engine import Engine
from fledge.server import errors, playground
from fledge.server.bodies import BodyRoute
from fledge.server.errors import ApiError
from fledge.server.gate import Gate
from fledge.server.generation import Server
from fledge.server.learning import Learner, add_learning
from fledge.server.options import ServerOptions
from fledge.server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    PredictRequest,
    TokenizeRequest,
)
from fledge.server.render import Json
from fledge.server.responses import ResponseRenderer, ResponsesRequest
from fledge.server.sglang import GenerateRequest, NativeRenderer
from fledge.server.strict import read


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


def create_app(engine: Engine, options: ServerOptions | None = None) -> FastAPI:
    """An ASGI application that serves `engine`; it owns the engine from start-up to shutdown."""
    recorder: object = engine.recorder
    learning = recorder if isinstance(recorder, Learner) else None
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
    _add_vertex(app, server)  # first: its route may coincide with another
    _add_openai(app, server)
    _add_tokens(app, server)
    _add_sglang(app, server)
    _add_operations(app, server)
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
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await server.respond(body, request)

    @app.post("/v1/completions", tags=["OpenAI"])
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await server.respond(body, request)

    def card(name: str) -> Json:
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "fledge",
            "root": server.target_name,
            "parent": None,
            "max_model_len": server.engine.max_context,
        }

    @app.post("/v1/responses", tags=["OpenAI"])
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        """Text, functions and forms; earlier responses as far as memory goes."""
        client = request.state.visit.client
        earlier = server.conversations.find(client, body.previous_response_id)
        model = server.check_model(body.model)
        rendering = ResponseRenderer(body, model, earlier, server.conversations, client)
        return await server.respond(await asyncio.to_thread(body.chat, earlier), request, rendering)

    @app.post("/v1/embeddings", include_in_schema=False)
    async def embeddings() -> Json:
        raise ApiError(
            404,
            "this server generates text and makes no embeddings; ask a server that does",
            code="not_supported",
        )

    @app.get("/v1/models", tags=["OpenAI"])
    async def models() -> Json:
        return {"object": "list", "data": [card(name) for name in server.model_names]}

    @app.get("/v1/models/{model:path}", tags=["OpenAI"])
    async def model(model: str) -> Json:
        return card(server.check_model(model))


def _add_tokens(app: FastAPI, server: Server) -> None:
    @app.post("/tokenize", tags=["Tokens"])
    async def tokenize(body: TokenizeRequest) -> Json:
        server.check_model(body.model)
        if body.messages is not None:
            ids = await server.tokens.chat(body.messages, body.chat_template_kwargs, body.tools or ())
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


def _add_sglang(app: FastAPI, server: Server) -> None:
    @app.post("/generate", tags=["SGLang"])
    async def generate(body: GenerateRequest, request: Request) -> Response:
        """SGLang's own interface."""
        completion = await asyncio.to_thread(body.completion)
        return await server.respond(completion, request, NativeRenderer(body, server.tokens))

    @app.get("/model_info", tags=["SGLang"])
    @app.get("/get_model_info", include_in_schema=False)
    async def model_info() -> Json:
        """The route where SGLang's clients look up the model."""
        name = server.target_name
        return {"model_path": name, "tokenizer_path": name, "is_generation": True}


def _add_vertex(app: FastAPI, server: Server) -> None:
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


def _add_operations(app: FastAPI, server: Server) -> None:
    async def health() -> Json:
        """200 while the process is healthy."""
        problem = server.worker.problem
        if problem is not None:
            raise ApiError(503, f"{problem}; restart this server", code="unhealthy")
        return {"status": "ok"}

    for route in filter(None, ("/health", "/ping", server.options.health_route)):
        app.add_api_route(route, health, methods=["GET"], tags=["Operations"])

    @app.get("/ready", tags=["Operations"])
    async def ready() -> Json:
        """200 while new requests are accepted."""
        if server.worker.draining:
            raise errors.draining(1)
        return await health()

    @app.get("/metrics", tags=["Operations"], response_class=Response)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(server.worker.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/server_info", tags=["Operations"])
    @app.get("/get_server_info", include_in_schema=False)
    async def server_info() -> Json:
        """Configuration and statistics; SGLang's benchmark reads the acceptance length in `internal_states`."""
        engine, stats = server.engine, server.engine.stats()
        engine_stats = asdict(stats)
        engine_stats["tau"] = stats.tau
        return {
            "version": __version__,
            "model_path": server.target_name,
            "served_model_name": server.model_names[0],
            "target": {
                "name": engine.target.name,
                "revision": engine.target.revision,
                "dtype": str(engine.target.dtype).removeprefix("torch."),
                "backend": engine.target.backend,
            },
            "speculative": engine.speculative,
            "max_batch": engine.max_batch,
            "max_context": engine.max_context,
            "waiting": server.worker.waiting,
            "engine": engine_stats,
            "internal_states": [{"avg_spec_accept_length": stats.tau}],
        }

    @app.get("/load", tags=["Operations"])
    async def load() -> Json:
        """As in vLLM: how many answers are waiting or in progress."""
        return {"server_load": server.worker.unfinished}

    @app.get("/tokenizer_info", tags=["Operations"])
    async def tokenizer_info() -> Json:
        """As in vLLM: the tokenizer's class, its chat template and special tokens; lm-eval asks for it."""
        tokenizer = server.engine.target.tokenizer
        return {
            "tokenizer_class": type(tokenizer).__name__,
            "chat_template": tokenizer.chat_template,
            "model_max_length": server.engine.max_context,
            **{
                name: str(token)
                for name, token in tokenizer.special_tokens_map.items()
                if isinstance(token, str)
            },
        }

    @app.get("/version", tags=["Operations"])
    async def version() -> Json:
        """As in vLLM."""
        return {"version": __version__}

    page, headers = playground.page(), playground.headers()

    @app.get("/", include_in_schema=False)
    async def playground_page() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def wrong_body(_: Request, error: RequestValidationError) -> Response:
        return errors.from_validation(error.errors()).response()

    @app.exception_handler(RecursionError)  # parsed, but too deep for later code
    async def too_deep(_: Request, error: RecursionError) -> Response:
        return errors.invalid("the body is nested too deeply; send a flatter one").response()

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # not UTF-8, or numbers or nesting that the JSON parser rejects
            return errors.no_json().response()
        messages = {
            404: "no such route; OpenAI's routes begin with /v1, and /openapi.json lists all",
            405: "this method isn't allowed for this route",
        }
        message = messages.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=error.headers).response()


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
