"""Log lines as text or, one JSON object each, for machines. Prompts and answers are never logged."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from fledge.base.errors import ServerError


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        details = " ".join(f"{key}={json.dumps(value, default=str)}" for key, value in fields.items())
        return f"{super().format(record)} {details}".rstrip()


def set_up_logs(style: str) -> None:
    """One handler on stderr for fledge, at INFO, and uvicorn's warnings; `style` is "text" or "json"."""
    if style not in ("text", "json"):
        raise ServerError(f"log format {style!r} is unknown; use text or json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if style == "json" else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    for name in ("fledge", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").disabled = True  # our access log has more details
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # at INFO it says what our own lines say
