"""Peak memory of selecting among N synthetic prompts of about 60 words:

    python -m benchmarks.selection_memory 100000 [folder]
    python -m benchmarks.selection_memory 1000000 [folder]

One prompt in ten is a repeat, one in ten nearly one. Killed or timed out, the same command goes on where it stopped;
each run prints its own peak.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fledge.data.gathering import ExaminerSettings, examine_here, gather
from fledge.data.options import PromptOptions
from fledge.data.selection import PoolSource, Selected, select_prompts
from fledge.data.selection.matching import NgramCounts
from fledge.data.sources import Record

_WORDS = [
    f"{a}{b}{c}" for a in "bdfgklmnprst" for b in ("a", "e", "io", "ou") for c in ("n", "rt", "s", "ll", "mp")
]


class SyntheticPrompts:
    """Prompts drawn from 240 words, the same for the same row."""

    name, licence, shape = "synthetic", "own", "prompt"

    def __init__(self, count: int) -> None:
        self._count = count

    def records(self, skip: int = 0) -> Iterator[Record]:
        """Rows skip..count-1."""
        for row in range(skip, self._count):
            words = self._words(row // 2 if row % 10 == 9 else row - 1 if row % 10 == 5 else row)
            if row % 10 == 5:
                words[30] = "changed"
            yield Record(row, (" ".join(words),), None, "general")

    def digest(self) -> str:
        """Of the count alone."""
        return str(self._count)

    def _words(self, row: int) -> list[str]:
        rng = random.Random(row)
        return rng.choices(_WORDS, k=rng.randint(40, 80))


def select(count: int, folder: Path, shard_size: int = 10_000) -> Selected:
    """Gather `count` synthetic prompts and keep half of them, matched to synthetic traffic of two workloads."""
    options = PromptOptions(
        count=count // 2, shard_size=shard_size, sources=({"path": "synthetic", "licence": "own"},)
    )
    settings = ExaminerSettings(options, ("<|im_end|>",), "salt")
    gather(
        SyntheticPrompts(count),  # type: ignore[arg-type]
        str(folder / "pool"),
        examine_here(settings),
        shard_size,
        lambda rows: None,
    )
    rng = random.Random(0)
    traffic = {
        name: NgramCounts.of([(" ".join(rng.choices(part, k=60)),) for _ in range(500)])
        for name, part in (("one", _WORDS[:120]), ("two", _WORDS[120:]))
    }
    pool = [PoolSource("synthetic", str(folder / "pool"), 1.0)]
    return select_prompts(pool, traffic, options, str(folder / "out"), "salt", lambda turns: 0)


def peak_mib() -> float:
    """The process's largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    number = int(sys.argv[1])
    place = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(f"runs/selection-{number}")
    began, at_start = time.monotonic(), peak_mib()
    result = select(number, place)
    print(
        f"{number:,} prompts: {result.duplicates}, {sum(result.chosen.values()):,} chosen, {result.surplus:,} surplus"
    )
    print(f"peak RSS {peak_mib():.0f} MiB ({at_start:.0f} MiB before), {time.monotonic() - began:.0f} s")
