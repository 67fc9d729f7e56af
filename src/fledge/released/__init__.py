"""Heads that ship with the package, one folder each, identified by their target's revision."""

from __future__ import annotations

import json
from pathlib import Path

from fledge.base.errors import HeadError
from fledge.heads import Head
from fledge.target import Target

FOLDER = Path(__file__).parent


def released_folder(revision: str) -> str | None:
    """The folder of the shipped head for exactly this target revision, or None."""
    for config in sorted(FOLDER.glob("*/config.json")):
        made_for = json.loads(config.read_text("utf-8")).get("fledge", {})
        if made_for.get("target_revision") == revision:
            return str(config.parent)
    return None


def released_head(target: Target) -> Head:
    """The shipped head for exactly this target; a HeadError if there is none."""
    return load_head(target, "released")


def load_head(target: Target, name: str) -> Head:
    """The head a user names for a target: a folder, URL or hub id, or `released`; a HeadError if it doesn't fit."""
    head = Head.load(head_url(target, name))
    head.check_target(head.target_it_reads(target))
    return head


def head_url(target: Target, name: str) -> str:
    """The URL of a head as a user names it: `released` for the shipped one, else its folder."""
    if name != "released":
        return name
    shipped = released_folder(target.revision)
    if shipped is None:
        raise HeadError(
            f"no head ships for {target.name} (revision {target.revision[:12]}); name a head's folder, "
            "or train one with `fledge run`"
        )
    return shipped
