"""Checksums that lie in the file they protect. A file without one was brought by a user, or is an older version's."""

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
    """Of a JSON value, however it is written."""
    return sha256(json.dumps(json.loads(json.dumps(value)), sort_keys=True).encode())


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its own checksum."""
    return {**value, FIELD: json_sha256(value)}


def unsealed(value: Any) -> dict[str, Any]:
    """What `sealed` was given. Raises a ValueError if the object has changed since."""
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    rest = {name: part for name, part in value.items() if name != FIELD}
    if FIELD in value and value[FIELD] != json_sha256(rest):
        raise ValueError("wrong checksum")
    return rest
