"""The playground at /: one page without outside requests, put together from its parts beside this file."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

_SCRIPTS = ("stream.js", "tree.js", "answer.js", "chat.js", "race.js", "main.js")


def page() -> bytes:
    """The page, style and scripts inside."""
    folder = files(__package__)
    html = folder.joinpath("page.html").read_text("utf-8")
    return (
        html.replace("/* STYLE */", folder.joinpath("style.css").read_text("utf-8"))
        .replace("/* SCRIPT */", _script())
        .encode()
    )


def headers() -> dict[str, str]:
    """A browser runs this page's own script and nothing else, and lets it talk to this server only."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return {
        "Content-Security-Policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _script() -> str:
    folder = files(__package__)
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in _SCRIPTS)
