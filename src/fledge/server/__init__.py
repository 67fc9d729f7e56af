"""The server: OpenAI-compatible HTTP over the engine, metrics, and a playground page."""

try:
    from fledge.server.app import create_app
    from fledge.server.launch import serve
    from fledge.server.options import ServerOptions
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in {"fastapi", "starlette", "uvicorn", "prometheus_client"}:
        raise
    from fledge.base.errors import ServerError

    raise ServerError(
        f"the server needs the package {error.name}; install it with `pip install 'fledge[serve]'`"
    ) from error

__all__ = ["ServerOptions", "create_app", "serve"]
