"""What was found and done, in numbers: safe to share, for it holds no text, no value and no hash of one.

prompts/privacy/counts-00000.json               per shard, written before it: records scanned, changed, dropped;
prompts/pool/NAME/privacy/counts-00000.json     entities found; likewise of a source's rows
prompts/traffic/privacy/counts-00000.json       of the samples of traffic
conversations/privacy/counts-00000.json         of prompts' answers
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fledge.data.privacy.filter import Treated
from fledge.storage import Manifest, join

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
        """Count another's records too."""
        self.scanned += other.scanned
        self.changed += other.changed
        self.dropped.update(other.dropped)
        self.entities.update(other.entities)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "scanned": self.scanned,
            "changed": self.changed,
            "dropped": dict(sorted(self.dropped.items())),
            "entities": dict(sorted(self.entities.items())),
        }


class AuditWriter:
    """Adds the counts of one shard after the other; `shards` of the stage are there already."""

    def __init__(self, url: str, shards: int) -> None:
        self._manifest = Manifest.load(join(url, FOLDER)).truncated(shards)
        self._shards = shards

    def write(self, audit: Audit) -> None:
        """Write the counts of the next shard."""
        data = (json.dumps(audit.to_dict(), indent=1, sort_keys=True) + "\n").encode()
        name = f"counts-{self._shards:05d}.json"
        self._manifest = self._manifest.write_shard(name, data, records=audit.scanned, tokens=0)
        self._shards += 1


def read_audit(url: str) -> Audit:
    """The counts of a stage's folder; all zero if nothing was scanned."""
    manifest = Manifest.load(join(url, FOLDER))
    sum_ = Audit()
    for shard in manifest.shards:
        values = json.loads(manifest.read_shard(shard))
        dropped, entities = Counter(values["dropped"]), Counter(values["entities"])
        sum_.merge(Audit(values["scanned"], values["changed"], dropped, entities))
    return sum_
