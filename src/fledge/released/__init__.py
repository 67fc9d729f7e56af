"""Heads that ship with the package, one folder each, found by the target they were made for."""

from __future__ import annotations

import json
from pathlib import Path

from fledge.draft import Head
from fledge.errors import HeadError
from fledge.target import Target

FOLDER = Path(__file__).parent


def released_folder(revision: str) -> str | None:
    """The folder of the shipped head for the target of this very revision, or None."""
    for config in sorted(FOLDER.glob("*/config.json")):
        made_for = json.loads(config.read_text("utf-8")).get("fledge", {})
        if made_for.get("target_revision") == revision:
            return str(config.parent)
    return None


def released_head(target: Target) -> Head:
    """The shipped head for this very target; a HeadError if there is none."""
    return Head.load(head_url(target, "released"))


def head_url(target: Target, given: str) -> str:
    """What a user calls a head: `released` for the shipped one, else its folder."""
    if given != "released":
        return given
    shipped = released_folder(target.revision)
    if shipped is None:
        raise HeadError(
            f"no head ships for {target.name} (revision {target.revision[:12]}); name a head's folder, "
            "or train one with `fledge run`"
        )
    return shipped
