"""Said before a run starts: how much of its sources is usable, and whether that is enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fledge.base.console import StageProgress, plural, say
from fledge.base.errors import DataError
from fledge.data import PromptOptions
from fledge.data.mixing import Gathered, Sources
from fledge.data.prompts import gather_sources
from fledge.data.reasons import reasons_line
from fledge.data.sources import Unusable
from fledge.run.folder import Run

ENOUGH = 1200  # the full demo's prompts, of one turn each
_OTHER_CHATS = "name other chats, or leave --from out and let the target write all prompts"


def say_what_chats_give(run: Run) -> None:
    """Read the sources into the run, and say how much of them is usable.

    Raises a DataError if nothing is.
    """
    options = run.prompt_options
    if run.is_given("prompts"):
        return
    if not any(source.kind != "self" for source in options.sources):
        say(f"The target writes all {options.count:,} prompts itself: no chats are named (--from).")
        say(*_few(options.count))
        return
    _refuse_unusable(Sources.open(options), options)  # before the target is loaded, and a folder made
    place = run.url("prompts")
    with run.locked():
        with StageProgress("chats") as progress:
            found = gather_sources(run.target, options, place, progress.update, privacy=run.privacy)
        lines = [_line(one, options) for one in found]
        if not any(one.distinct.prompts for one in found):
            raise DataError(f"{'; '.join(lines)}: {_OTHER_CHATS}; delete {place} first")
    say(*lines, *_enough(found, options.count))


def _refuse_unusable(sources: Sources, options: PromptOptions) -> None:
    """Raise a DataError if no row of any source is a conversation."""
    reasons: Counter[str] = Counter()
    for source in sources.prompts:
        for record in source.records():
            if not isinstance(record, Unusable):
                return
            reasons[record.reason] += 1
    names = ", ".join(source.path for source in options.sources if source.kind != "self")
    raise DataError(f"no turn of a user is in {names}: {reasons_line(reasons, options)}; {_OTHER_CHATS}")


def _line(one: Gathered, options: PromptOptions) -> str:
    rows = one.distinct
    line = f"{one.path}: {plural(rows.prompts, 'conversation')} with {plural(rows.turns, 'turn')} usable"
    if one.rejected:
        line += f", {sum(one.rejected.values()):,} left out ({reasons_line(one.rejected, options)})"
    return line


def _enough(found: Sequence[Gathered], count: int) -> list[str]:
    prompts = sum(one.distinct.prompts for one in found)
    turns = sum(one.distinct.turns for one in found)
    if prompts >= count:
        return [f"{count:,} of {plural(prompts, 'conversation')} are drawn, as --prompts says.", *_few(count)]
    if turns >= ENOUGH:
        verdict = f"That is enough: the full demo's head is made of {ENOUGH:,} turns."
    else:
        verdict = (
            f"That is too little by itself: the full demo's head is made of {ENOUGH:,} turns, and a few dozen teach a "
            "head next to nothing."
        )
    more = plural(count - prompts, "prompt")
    return [f"{verdict} The target writes {more} of its own, up to --prompts {count}.", *_few(count)]


def _few(count: int) -> list[str]:
    if count >= ENOUGH:
        return []
    return [
        f"{plural(count, 'prompt')} in all are fewer than the full demo's {ENOUGH:,}: expect a head that drafts less "
        "than it could."
    ]
