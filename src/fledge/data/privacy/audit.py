"""Counts of what was found and done; safe to share, since they contain no text, no value and no hash of one.

prompts/privacy/counts-00000.json               per shard, written before it: records scanned, changed, dropped;
prompts/pool/NAME/privacy/counts-00000.json     entities found; likewise of a source's rows
prompts/traffic/privacy/counts-00000.json       of the samples of traffic
conversations/privacy/counts-00000.json         of prompts' answers
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fledge.base.storage import Manifest, join
from fledge.data.privacy.filter import Treated

FOLDER = "privacy"


@dataclass
class Audit:
    """Counts of a shard or of a folder."""

    scanned: int = 0
    changed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # reason -> records
    entities: Counter[str] = field(default_factory=Counter)  # entity -> occurrences

    def add(self, treated: Treated) -> None:
        """Count one record."""
        self.scanned += 1
        self.entities.update(treated.counts)
        if treated.reason is not None:
            self.dropped[treated.reason] += 1
        elif treated.counts:
            self.changed += 1

    def merge(self, other: Audit) -> None:
        """Add another's counts."""
        self.scanned += other.scanned
        self.changed += other.changed
        self.dropped.update(other.dropped)
        self.entities.update(other.entities)

    def to_dict(self) -> dict[str, Any]:
        """The counts as JSON values."""
        return {
            "scanned": self.scanned,
            "changed": self.changed,
            "dropped": dict(sorted(self.dropped.items())),
            "entities": dict(sorted(self.entities.items())),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Audit:
        """The inverse of `to_dict`."""
        return cls(
            values["scanned"], values["changed"], Counter(values["dropped"]), Counter(values["entities"])
        )


def write_audit(url: str, shards: int, *audits: Audit | None) -> None:
    """Write the counts of the next shard of a stage's folder, which has `shards`; nothing if nothing was scanned."""
    present = [audit for audit in audits if audit is not None]
    if present:
        total = _sum(present)
        data = (json.dumps(total.to_dict(), indent=1, sort_keys=True) + "\n").encode()
        manifest = Manifest.load(join(url, FOLDER)).truncated(shards)
        manifest.write_shard(f"counts-{shards:05d}.json", data, records=total.scanned, tokens=0)


def read_audit(*urls: str) -> Audit:
    """The counts of stages' folders; all zero if nothing was scanned."""
    manifests = [Manifest.load(join(url, FOLDER)) for url in urls]
    return _sum(
        Audit.from_dict(json.loads(manifest.read_shard(shard)))
        for manifest in manifests
        for shard in manifest.shards
    )


def _sum(audits: Iterable[Audit]) -> Audit:
    total = Audit()
    for audit in audits:
        total.merge(audit)
    return total
