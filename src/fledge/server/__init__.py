"""The server: OpenAI-compatible HTTP over the engine, metrics, and a playground page."""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.server.launch import serve as serve
else:
    __getattr__ = on_first_use(__name__)
