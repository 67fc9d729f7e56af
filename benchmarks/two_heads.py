"""Two heads for one target, in turn: tau, the time that drafting takes, and the speed-up over plain decode.

python -m benchmarks.two_heads TARGET HEAD HEAD [--workloads mixed FILE ...] [--prompts 8] [--repeats 3]

First with one tree for all rounds and no prompt lookup, so that both heads make as many draft steps a round; then as
served: planned, with lookup. Each prompt is answered, greedily, by every engine in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fledge.bench.workloads import find_workload
from fledge.engine import Engine, TreeShape
from fledge.heads import Head
from fledge.released import head_url
from fledge.target import Target

_TREE = TreeShape(4, 4, 16)
_TOKENS = 96  # of an answer, at most


@dataclass
class Measured:
    """An engine and what its answers took so far."""

    engine: Engine
    seconds: float = 0.0
    drafting: float = 0.0
    tokens: int = 0
    rounds: int = 0

    def answer(self, prompt: list[int]) -> None:
        """Answer a prompt; prefill isn't counted."""
        before = self.engine.stats()
        begun = 0.0
        for _ in self.engine.stream_sync(prompt, max_tokens=_TOKENS):
            begun = begun or time.perf_counter()
        self.seconds += time.perf_counter() - begun
        after = self.engine.stats()
        self.drafting += after.phases.since(before.phases).draft
        self.tokens += after.round_tokens - before.round_tokens
        self.rounds += after.rounds - before.rounds


def compare(
    target: Target, heads: Sequence[Head], prompts: list[list[int]], repeats: int, planned: bool
) -> str:
    """A line: what the second head is to the first, and both to plain decode."""
    sizes = {"max_batch": 1, "max_context": 1024, "prefix_cache": False}
    shape = {} if planned else {"tree": _TREE, "lookup": 0}
    engines = [Engine(target, **sizes)] + [Engine(target, head, **shape, **sizes) for head in heads]  # type: ignore[arg-type]
    for engine in engines:
        engine.generate(prompts, max_tokens=_TOKENS)  # warm; the planner learns
    plain, first, second = measured = [Measured(engine) for engine in engines]
    for repeat in range(repeats):
        for prompt in prompts:
            for one in measured[repeat % 3 :] + measured[: repeat % 3]:
                one.answer(prompt)
    drafting = [1e3 * one.drafting / one.rounds for one in (first, second)]
    taus = [one.tokens / one.rounds for one in (first, second)]
    speedups = [plain.seconds / one.seconds for one in (first, second)]

    def pair(name: str, values: list[float]) -> str:
        return f"{name} {values[0]:.3f} -> {values[1]:.3f} ({values[1] / values[0]:.4f})"

    return "; ".join((pair("tau", taus), pair("drafting, ms a round", drafting), pair("speed-up", speedups)))


def main() -> None:
    """Print two lines for each workload."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_heads", description=__doc__)
    parser.add_argument("model", help="folder, hub id, GGUF file or package")
    parser.add_argument("heads", nargs=2, help="folders, or `released`")
    parser.add_argument("--workloads", nargs="+", default=["mixed"])
    parser.add_argument("--prompts", type=int, default=8, help="of each workload")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    target = Target.load(asked.model)
    heads = [Head.load(head_url(target, head)) for head in asked.heads]
    for name in asked.workloads:
        chosen = find_workload(name).limited(asked.prompts).prompts
        prompts = [target.chat.prompt_ids(prompt.messages) for prompt in chosen]
        for planned in (False, True):
            line = compare(target, heads, prompts, asked.repeats, planned)
            print(f"{name}, {'as served' if planned else 'one tree'}: {line}", flush=True)


if __name__ == "__main__":
    main()
