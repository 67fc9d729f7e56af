"""The playground at /: one page without external requests, assembled from the files beside this one."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

_LIBRARIES = ("vendor/marked.js", "vendor/highlight.js")
_SCRIPTS = (
    "store.js",
    "stream.js",
    "tree.js",
    "markdown.js",
    "answer.js",
    "chat.js",
    "race.js",
    "learning.js",
    "main.js",
)


def page() -> bytes:
    """The page, including style and scripts."""
    return (
        _text("page.html")
        .replace("/* STYLE */", _text("style.css"))
        .replace("/* LIBRARIES */", _text(*_LIBRARIES))
        .replace("/* SCRIPT */", _text(*_SCRIPTS))
        .encode()
    )


def headers() -> dict[str, str]:
    """Headers that let the browser run only this page's own scripts and connect only to this server."""
    scripts = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(_text(*names).encode()).digest()).decode()}'"
        for names in (_LIBRARIES, _SCRIPTS)
    )
    return {
        "Content-Security-Policy": f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _text(*names: str) -> str:
    folder = files(__package__)
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)
