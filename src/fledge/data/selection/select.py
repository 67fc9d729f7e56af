"""From the sources' pools to the chosen prompts, in passes over the pools; only a few numbers per row are in memory.

    pass 1   duplicate keys and noise of every row          ──► verdicts
    pass 2   (with traffic) n-grams of the pool             ──► q
    pass 3   (with traffic) log weight per workload         ──► keys
    draw     the largest keys, as many as each quota        ──► chosen
    pass 4   chosen rows to prompts/, duplicates to rejects/

If killed, it starts again from the pools and ends with the same files.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fledge.base.errors import StorageError, one_line
from fledge.base.storage import Manifest
from fledge.data.options import PromptOptions
from fledge.data.prompt_store import PromptWriter, Reject, TrainingPrompt, prompt_shards
from fledge.data.seeds import salted_hash
from fledge.data.selection.duplicates import KEPT, REASONS, DuplicateFinder
from fledge.data.selection.matching import NgramCounts, TrafficModel, distance, features, gumbel
from fledge.data.selection.quotas import share_out


@dataclass(frozen=True)
class PoolSource:
    """One source's pool."""

    name: str
    url: str
    weight: float


@dataclass(frozen=True)
class Selected:
    """The outcome of a selection."""

    pool: int
    duplicates: Mapping[str, int]  # reason -> rows
    surplus: int  # neither duplicate nor needed
    wanted: Mapping[str, int]  # source -> its share of `count`
    chosen: Mapping[str, int]  # source -> rows
    # Workload -> before, after, traffic.
    distances: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass
class Distinct:
    """The rows of a pool that repeat no other row of any pool."""

    prompts: int = 0
    turns: int = 0
    characters: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)  # the others, by reason


def distinct_rows(pools: Sequence[PoolSource], options: PromptOptions) -> Mapping[str, Distinct]:
    """Source -> the rows of its pool to choose from."""
    checksums = tuple(shard.sha256 for pool in pools for shard in Manifest.load(pool.url).shards)
    return _distinct(tuple(pools), checksums, options.near_duplicate, options.seed)


@lru_cache(maxsize=1)  # what chats give, several estimates and the draw ask for the same
def _distinct(
    pools: tuple[PoolSource, ...], checksums: tuple[str, ...], near_duplicate: float, seed: int
) -> Mapping[str, Distinct]:
    """`distinct_rows` of pools whose shards have these checksums."""
    verdicts, _ = _duplicates(pools, near_duplicate, seed)
    distinct = {pool.name: Distinct() for pool in pools}
    for verdict, (pool, prompt) in zip(map(int, verdicts), _rows(pools), strict=True):
        of = distinct[pool]
        if verdict == KEPT:
            of.prompts += 1
            of.turns += len(prompt.turns)
            of.characters += sum(map(len, prompt.turns))
        else:
            of.duplicates[REASONS[verdict]] += 1
    return distinct


def select_prompts(
    pools: Sequence[PoolSource],
    traffic: Mapping[str, NgramCounts],
    options: PromptOptions,
    output_url: str,
    salt: str,
    count_tokens: Callable[[Sequence[str]], int],
    progress: Callable[[str], None] = lambda note: None,
) -> Selected:
    """Write the chosen prompts and the duplicates among the others into a folder.

    Args:
        traffic: n-gram counts per workload; empty: no matching.
        count_tokens: tokens of a prompt's turns.
        progress: called with a description of the current step.
    """
    progress("finding duplicates")
    verdicts, noise = _duplicates(pools, options.near_duplicate, options.seed)
    sizes = [Manifest.load(pool.url).records for pool in pools]
    drawing = _Drawing(pools, sizes, verdicts == KEPT, noise, options)
    if traffic:
        progress("matching to traffic")
        chosen = drawing.to_traffic(traffic)
    else:
        chosen = drawing.by_weight()
    progress("writing")
    workloads = sorted(traffic)
    _write(pools, verdicts, chosen, workloads, options, output_url, salt, count_tokens)
    borders = np.cumsum([0, *sizes])
    chosen_per_source = {
        pool.name: int((chosen[start:stop] >= 0).sum())
        for pool, start, stop in zip(pools, borders, borders[1:], strict=False)
    }
    return Selected(
        pool=len(verdicts),
        duplicates={name: int((verdicts == code).sum()) for code, name in REASONS.items()},
        surplus=int(((verdicts == KEPT) & (chosen < 0)).sum()),
        wanted=share_out(
            options.count, {p.name: p.weight for p in pools}, {p.name: options.count for p in pools}
        ),
        chosen=chosen_per_source,
        distances=_distances(pools, chosen, workloads, traffic, drawing.pool_counts) if traffic else {},
    )


def _duplicates(
    pools: Sequence[PoolSource], near_duplicate: float, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Of each row its verdict and the noise that draws it."""
    noise: list[NDArray[np.float32]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="fledge-select-") as scratch:
            finder = DuplicateFinder(Path(scratch) / "keys", near_duplicate)
            for shard in _shards(pools):
                finder.add(shard)
                noise.append(np.array([gumbel(seed, prompt.prompt_id) for prompt in shard], np.float32))
            verdicts = finder.verdicts()
    except OSError as error:
        raise StorageError(
            f"can't store the prompts' keys in temporary files ({one_line(error)}); free some space there, or "
            "set TMPDIR to another folder, and run again"
        ) from error
    return verdicts, np.concatenate(noise) if noise else np.empty(0, np.float32)


class _Drawing:
    """Samples rows without replacement: the largest keys win."""

    def __init__(
        self,
        pools: Sequence[PoolSource],
        sizes: Sequence[int],
        alive: NDArray[np.bool_],
        noise: NDArray[np.float32],
        options: PromptOptions,
    ) -> None:
        self._pools, self._alive, self._noise, self._options = pools, alive, noise, options
        self._borders = np.cumsum([0, *sizes])
        # Of the rows that aren't duplicates; counted when matching to traffic.
        self.pool_counts = NgramCounts()

    def by_weight(self) -> NDArray[np.int32]:
        """0 for each chosen row, -1 for the others, [rows]; each source contributes its share."""
        chosen = np.full(len(self._alive), -1, np.int32)
        weights = {pool.name: pool.weight for pool in self._pools}
        quotas = share_out(self._options.count, weights, self._available())
        for pool, start, stop in self._ranges():
            rows = start + np.flatnonzero(self._alive[start:stop])
            chosen[_largest(self._noise, rows, quotas[pool.name])] = 0
        return chosen

    def to_traffic(self, traffic: Mapping[str, NgramCounts]) -> NDArray[np.int32]:
        """The workload's index (in the order of names) for each chosen row, -1 for the others, [rows]."""
        for _, prompt in self._alive_rows():
            self.pool_counts.add(features(prompt.turns))
        workloads = sorted(traffic)
        models = [TrafficModel(traffic[name], self.pool_counts) for name in workloads]
        keys = np.zeros((len(models), len(self._alive)), np.float32)
        for row, prompt in self._alive_rows():
            buckets = features(prompt.turns)
            keys[:, row] = [model.log_weight(buckets) for model in models]
        keys += self._noise + self._prior()
        chosen = np.full(len(self._alive), -1, np.int32)
        total = int(self._alive.sum())
        shares = {name: float(traffic[name].prompts) for name in workloads}
        quotas = share_out(min(self._options.count, total), shares, dict.fromkeys(workloads, total))
        for number, name in enumerate(workloads):
            rows = np.flatnonzero(self._alive & (chosen < 0))
            chosen[_largest(keys[number], rows, quotas[name])] = number
        return chosen

    def _prior(self) -> NDArray[np.float32]:
        """Per row, log of the ratio of its source's wanted share to its actual share."""
        prior = np.zeros(len(self._alive), np.float32)
        available = self._available()
        for pool, start, stop in self._ranges():
            if available[pool.name]:
                prior[start:stop] = np.log(pool.weight / available[pool.name])
        return prior

    def _available(self) -> dict[str, int]:
        return {pool.name: int(self._alive[start:stop].sum()) for pool, start, stop in self._ranges()}

    def _ranges(self) -> Iterator[tuple[PoolSource, int, int]]:
        for pool, start, stop in zip(self._pools, self._borders, self._borders[1:], strict=False):
            yield pool, int(start), int(stop)

    def _alive_rows(self) -> Iterator[tuple[int, TrainingPrompt]]:
        for row, (_, prompt) in enumerate(_rows(self._pools)):
            if self._alive[row]:
                yield row, prompt


def _largest(keys: NDArray[np.float32], rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The `count` rows with the largest keys; ties go to the earlier row."""
    order = np.lexsort((rows, -keys[rows]))
    return rows[order[:count]]


def _write(
    pools: Sequence[PoolSource],
    verdicts: NDArray[np.uint8],
    chosen: NDArray[np.int32],
    workloads: Sequence[str],
    options: PromptOptions,
    output_url: str,
    salt: str,
    count_tokens: Callable[[Sequence[str]], int],
) -> None:
    """Shards of chosen prompts, each with the duplicates met on the way; shards already written are skipped."""
    writer = PromptWriter(output_url)
    done, passed = writer.shards, 0
    prompts: list[TrainingPrompt] = []
    rejects: list[Reject] = []

    def flush() -> None:
        nonlocal passed, prompts, rejects
        if passed >= done:
            writer.write(prompts, rejects, sum(count_tokens(prompt.turns) for prompt in prompts))
        passed, prompts, rejects = passed + 1, [], []

    for row, (_, prompt) in enumerate(_rows(pools)):
        if chosen[row] >= 0:
            category = workloads[chosen[row]] if workloads else prompt.category
            prompts.append(replace(prompt, category=category))
        elif verdicts[row] != KEPT:
            hashed = salted_hash(salt, "\x1f".join(prompt.turns))
            rejects.append(
                Reject(prompt.row, prompt.category, REASONS[int(verdicts[row])], hashed, prompt.source)
            )
        if len(prompts) == options.shard_size:
            flush()
    if prompts or rejects:
        flush()


def _distances(
    pools: Sequence[PoolSource],
    chosen: NDArray[np.int32],
    workloads: Sequence[str],
    traffic: Mapping[str, NgramCounts],
    before: NgramCounts,
) -> dict[str, dict[str, float]]:
    after = {name: NgramCounts() for name in workloads}
    for row, (_, prompt) in enumerate(_rows(pools)):
        if chosen[row] >= 0:
            after[workloads[chosen[row]]].add(features(prompt.turns))
    return {
        name: {
            "traffic": traffic[name].prompts,
            "chosen": after[name].prompts,
            "before": round(distance(before, traffic[name]), 4),
            "after": round(distance(after[name], traffic[name]), 4),
        }
        for name in workloads
    }


def _shards(pools: Sequence[PoolSource]) -> Iterator[list[TrainingPrompt]]:
    for pool in pools:
        yield from prompt_shards(pool.url)


def _rows(pools: Sequence[PoolSource]) -> Iterator[tuple[str, TrainingPrompt]]:
    """Each row with the name of its pool."""
    for pool in pools:
        for shard in prompt_shards(pool.url):
            for prompt in shard:
                yield pool.name, prompt
