"""The inputs of a stage's folder, as `fingerprint.json`; a resumed stage must match it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fledge.base.checksums import sha256
from fledge.base.errors import FingerprintError, StorageError
from fledge.base.storage import FINGERPRINT_NAME, exists, join, read_json, remedy, write_json

_BACKEND_NAME = "backend.json"


@dataclass(frozen=True)
class Fingerprint:
    """The inputs of an output. The parts are stored, so that a mismatch can name the field."""

    parts: Mapping[str, Any]  # flat: dotted field -> JSON scalar or list
    digest: str

    def differing_fields(self, other: Fingerprint) -> list[str]:
        """Fields whose values differ, or that only one of the two has."""
        missing = object()
        fields = sorted({*self.parts, *other.parts})
        return [f for f in fields if self.parts.get(f, missing) != other.parts.get(f, missing)]

    def save(self, folder: str) -> None:
        """Write the folder's fingerprint.json."""
        write_json(join(folder, FINGERPRINT_NAME), {"digest": self.digest, "parts": dict(self.parts)})

    @classmethod
    def load(cls, folder: str) -> Fingerprint | None:
        """The fingerprint stored in a folder, or None."""
        url = join(folder, FINGERPRINT_NAME)
        if not exists(url):
            return None
        value = read_json(url)
        try:
            fingerprint = make_fingerprint(value["parts"])
            if fingerprint.digest != value["digest"]:
                raise ValueError("wrong checksum")
            return fingerprint
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StorageError(f"{url} is damaged ({error!r}); {remedy(url)}") from error

    def claim(self, folder: str) -> None:
        """Store the fingerprint in a new folder; in an existing one it must match, or the error names the fields."""
        stored = Fingerprint.load(folder)
        if stored is None:
            self.save(folder)
            return
        fields = stored.differing_fields(self)
        if fields:
            changes = ", ".join(f"{f}: {_shown(stored, f)} -> {_shown(self, f)}" for f in fields[:5])
            more = f" and {len(fields) - 5} more" if len(fields) > 5 else ""
            undo = "use the version of fledge that made it" if "format" in fields else "undo the change"
            raise FingerprintError(
                f"{folder} was made from other inputs ({changes}{more}); "
                f"{undo}, name another folder, or delete this one"
            )


def claim_backend(folder: str, backend: str) -> None:
    """Restrict a folder to one backend, named with its device, since others give slightly different answers.

    This isn't part of the fingerprint, since finished output may be used anywhere. Raises a FingerprintError for a
    folder started by another backend.
    """
    url = join(folder, _BACKEND_NAME)
    begun = read_json(url).get("backend") if exists(url) else None
    if begun is None:
        write_json(url, {"backend": backend})
    elif begun != backend:
        raise FingerprintError(
            f"{folder} was begun with the backend {begun!r}, and this process decodes with {backend!r}, whose answers "
            "differ here and there; go on where it was begun, name another folder, or delete this one"
        )


def make_fingerprint(parts: Mapping[str, Any]) -> Fingerprint:
    """A fingerprint of JSON values; nested mappings become dotted fields."""
    flat = dict(sorted(_flatten("", parts)))
    canonical = json.dumps(flat, sort_keys=True, separators=(",", ":"))
    return Fingerprint(json.loads(canonical), sha256(canonical.encode()))


def _flatten(prefix: str, parts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in parts.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def _shown(fingerprint: Fingerprint, field: str) -> str:
    text = json.dumps(fingerprint.parts[field]) if field in fingerprint.parts else "(absent)"
    return text if len(text) <= 60 else text[:57] + "..."
