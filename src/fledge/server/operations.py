"""Routes for those who run a server: probes, metrics, what it is and does."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from fledge import __version__
from fledge.server import errors, playground
from fledge.server.errors import ApiError
from fledge.server.generation import Server
from fledge.server.render import Json


def add_operations(app: FastAPI, server: Server) -> None:
    """Add them to the application."""

    async def health() -> Json:
        """200 while the process is healthy."""
        problem = server.worker.problem
        if problem is not None:
            raise ApiError(503, f"{problem}; restart this server", code="unhealthy")
        return {"status": "ok"}

    for route in filter(None, ("/health", "/v1/health", "/ping", server.options.health_route)):
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
                "quantization": engine.target.quantization,
                "backend": engine.target.backend,
            },
            "speculative": engine.speculative,
            "head": engine.head_name or None,
            "learning": engine.recorder is not None,  # then /v1/learn says how it goes
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

    @app.post("/flush_cache", tags=["Operations"])
    @app.get("/flush_cache", include_in_schema=False)
    @app.post("/reset_prefix_cache", include_in_schema=False)
    async def flush_cache() -> Json:
        """As in SGLang: forget all cached prefixes, if no answer is in progress."""
        if not await server.worker.flush():
            raise errors.invalid("answers are in progress; flush the cache when there are none")
        return {"status": "the cache is empty"}

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
