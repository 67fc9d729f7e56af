"""The prompts that a run will answer: those on disk, or else what the recipe asks for and its sources have."""

from __future__ import annotations

from typing import NamedTuple

from fledge.base.storage import Manifest, exists
from fledge.data.prompt_store import PromptWriter, pool_url, read_prompts
from fledge.data.selection import PoolSource, share_out
from fledge.data.selection.select import Distinct, distinct_rows
from fledge.run.folder import DONE_NAME, Run

# Typical of self-written prompts; used until the real ones are on disk.
_PROMPT_TOKENS = 35
_CHARACTERS_PER_TOKEN = 4


class Asked(NamedTuple):
    """The prompts to be answered."""

    prompts: int
    tokens: float  # per prompt, all its turns
    turns: float  # per prompt
    own: int  # of them, those that the target still has to write


def asked_prompts(run: Run) -> Asked:
    """The prompts on disk if complete, or else those the recipe requests, as far as its sources are known."""
    options, url = run.recipe.prompts, run.url("prompts")
    manifest = Manifest.load(url)
    if manifest.records and (exists(run.url("prompts", DONE_NAME)) or run.is_given("prompts")):
        count, given = manifest.records, sum(len(prompt.turns) for prompt in read_prompts(url))
        return Asked(count, manifest.tokens / count, given / count, 0)
    if not options.sources:
        return Asked(options.count, _PROMPT_TOKENS, 1.0, options.count)
    sources = {source.label: source for source in options.sources}
    pools = [PoolSource(name, pool_url(url, name), one.weight) for name, one in sources.items()]
    read = [pool for pool in pools if sources[pool.name].kind != "self" and PromptWriter(pool.url).finished]
    known = distinct_rows(read, options) if read else {}
    available = {pool.name: known[pool.name].prompts if pool in read else options.count for pool in pools}
    shares = share_out(options.count, {pool.name: pool.weight for pool in pools}, available)
    count = max(1, sum(shares.values()))
    typical = Distinct(1, 1, _PROMPT_TOKENS * _CHARACTERS_PER_TOKEN)
    turns = characters = 0.0
    for name, share in shares.items():
        rows = known.get(name, typical)
        turns += share * rows.turns / max(1, rows.prompts)
        characters += share * rows.characters / max(1, rows.prompts)
    own = sum(share for name, share in shares.items() if sources[name].kind == "self")
    return Asked(count, characters / _CHARACTERS_PER_TOKEN / count, turns / count, own)
