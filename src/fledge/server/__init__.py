"""The server: OpenAI-compatible HTTP over the engine, metrics, and a playground page."""

from fledge.server.app import create_app
from fledge.server.launch import serve
from fledge.server.options import ServerOptions

__all__ = ["ServerOptions", "create_app", "serve"]
