"""Heads that ship with the package, one folder each; and target and head as a user names them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from fledge.base.errors import HeadError
from fledge.base.storage import exists, join
from fledge.heads import Head
from fledge.heads.checkpoint import CONFIG_NAME
from fledge.heads.fit import other_weights
from fledge.sources.find import run_folder
from fledge.target import Target, TargetOptions

logger = logging.getLogger("fledge.note")

FOLDER = Path(__file__).parent
RELEASED = "released"  # how users name the shipped head


def released_folder(target: Target) -> str | None:
    """The folder of the shipped head for this target, whatever its quantisation; None if there is none."""
    for folder in sorted(config.parent for config in FOLDER.glob(f"*/{CONFIG_NAME}")):
        raw = json.loads((folder / CONFIG_NAME).read_text("utf-8"))
        same_size = (raw["vocab_size"], raw["hidden_size"]) == (
            target.config.vocab_size,
            target.config.hidden_size,
        )
        # A user's own head may lack a record; one that is chosen without being named has to have it.
        if same_size and raw["fledge"].get("template_hash") == target.template_hash:
            try:
                Head.load(str(folder)).check_target(target)
            except HeadError:
                continue
            return str(folder)
    return None


def released_head(target: Target) -> Head:
    """The shipped head for this target; a HeadError if there is none."""
    return load_head(target, RELEASED)


def load_head(target: Target, name: str) -> Head:
    """The head a user names for a target: a folder, URL or hub id, or `released`; a HeadError if it doesn't fit."""
    return _checked(Head.load(head_url(target, name)), target)


def load_pair(target: TargetOptions, head: str | None, *, plain: bool = False) -> tuple[Target, Head | None]:
    """A target, and the head that drafts for it; the log says which, or that there is none.

    `head`: a folder, URL or hub id; `released`: the shipped head; None: that one, else one that `fledge make-head` made
    here, else none. Raises a HeadError if a head that is named doesn't fit.
    """
    named = None if head in (None, RELEASED) else Head.load(str(head))
    loaded = target.load()
    if plain:
        logger.info("%s: no draft head, as --plain says", loaded.name)
        return loaded, None
    if named is not None:
        drafts = _checked(named, loaded)
        logger.info("%s: drafting with the head %s", loaded.name, head)
        return loaded, drafts
    shipped = released_folder(loaded)
    if head is None and shipped is None:
        made, found = made_here(target.model, loaded)
        if made is None:
            why = f"no head ships for it{found}; name a --head, or make one with fledge make-head"
            logger.info("%s: decoding plainly, since %s", loaded.name, why)
        else:
            logger.info("%s: drafting with the head %s", loaded.name, found)
        return loaded, made
    drafts = released_head(loaded) if shipped is None else _checked(Head.load(shipped), loaded)
    logger.info("%s: drafting with the released head", loaded.name)
    return loaded, drafts


def made_here(model: str, target: Target) -> tuple[Head | None, str]:
    """The head in the folder where `fledge make-head` puts one for this model, and that folder.

    None if there is none; with why, as the end of a sentence, if it doesn't fit.
    """
    folder = join(run_folder(model), "head")
    if not exists(join(folder, CONFIG_NAME)):
        return None, ""
    try:
        return _checked(Head.load(folder), target), folder
    except HeadError as error:
        return None, f", and {folder} doesn't fit ({error})"


def head_url(target: Target, name: str) -> str:
    """The URL of a head as a user names it: `released` for the shipped one, else its folder."""
    if name != RELEASED:
        return name
    shipped = released_folder(target)
    if shipped is None:
        raise HeadError(
            f"no head ships for {target.name}; name a head's folder, or make one with `fledge make-head`"
        )
    return shipped


def _checked(head: Head, target: Target) -> Head:
    target = head.target_it_reads(target)
    head.check_target(target)
    if note := other_weights(head.metadata, target):
        logger.info("the head was %s", note)
    return head
