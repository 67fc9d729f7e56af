"""Checksums stored inside the file they protect. A file without one is a user's, or of data/."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FIELD = "sha256"


def sha256(data: bytes | memoryview) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def json_sha256(value: Any) -> str:
    """SHA-256 of a JSON value, independent of its formatting."""
    return sha256(json.dumps(json.loads(json.dumps(value)), sort_keys=True).encode())


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object with its own checksum added."""
    return {**value, FIELD: json_sha256(value)}


def unsealed(value: Any) -> dict[str, Any]:
    """The inverse of `sealed`. Raises a ValueError if the object has changed since."""
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    value_only = {name: part for name, part in value.items() if name != FIELD}
    if FIELD in value and value[FIELD] != json_sha256(value_only):
        raise ValueError("wrong checksum")
    return value_only
