"""The playground at /: one page without external requests, assembled from the files beside this one."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

_SCRIPTS = ("stream.js", "tree.js", "answer.js", "chat.js", "race.js", "main.js")


def page() -> bytes:
    """The page, including style and scripts."""
    folder = files(__package__)
    html = folder.joinpath("page.html").read_text("utf-8")
    return (
        html.replace("/* STYLE */", folder.joinpath("style.css").read_text("utf-8"))
        .replace("/* SCRIPT */", _script())
        .encode()
    )


def headers() -> dict[str, str]:
    """Headers that let the browser run only this page's own script and connect only to this server."""
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
