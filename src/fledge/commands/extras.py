"""A command that lacks an optional package says what installs it."""

from __future__ import annotations

# By the name of the module that is imported, the extra of fledge that installs it.
EXTRAS = {
    "pyarrow": "train",
    "py3langid": "data",
    "rensa": "data",
    "httpx2": "data",
    "aiohttp": "bench",
    "fastapi": "serve",
    "prometheus_client": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
}


def missing_package(error: ModuleNotFoundError) -> str | None:
    """The line that names the package and the command that installs it; None for a module of no extra."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return f"this needs the package {module}: run pip install 'fledge[{EXTRAS[module]}]'"
