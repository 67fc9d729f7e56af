"""The engine's answers: with drafts, graphs and overlap those of plain decode, and in float32 those of a CPU."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from fledge.draft import DraftVocabulary
from fledge.engine import Engine, TreeShape
from fledge.heads import Head
from fledge.target import Target
from tests.gpu.record import Check
from tests.gpu.script import MIDDLE, TINY, Scripted, scripted
from tests.tiny import TinyShape, save_tiny_target

_TREES = (None, TreeShape(4, 2, 8), TreeShape(3, 1, 4), TreeShape(3, 2, 6, 8))  # None: the planner's
_DRAWN: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.02},
    {"temperature": 1.0, "repetition_penalty": 1.2},
    {"logprobs": 2},
)


def answers(check: Check) -> None:
    """Greedy answers are the script's, drawn ones plain decode's (in bf16 on a GPU); also where a step waits."""
    dtype = torch.bfloat16 if check.gpu else torch.float32
    made = scripted(TINY if check.small else MIDDLE, check.device, dtype, rate=0.7)
    prompts, length = made.prompts(8, 9), 16 if check.small else 96
    modes = [(graphs, overlap) for graphs in (False, True) for overlap in (False, True)]
    for graphs, overlap in modes if check.gpu else [(False, False)]:
        for tree in _TREES:
            name = f"greedy, {_words(graphs, overlap)}, {tree or 'planner'}"
            check.case(
                name,
                lambda g=graphs, o=overlap, t=tree: _greedy(check, made, prompts, length, g, o, t),
                least=40.0,
            )
    for options in _DRAWN:
        check.case(f"drawn, {options}", lambda o=options: _drawn(check, made, prompts, length, o), least=30.0)


def _words(graphs: bool, overlap: bool) -> str:
    return f"graphs {'on' if graphs else 'off'}, overlap {'on' if overlap else 'off'}"


def _greedy(
    check: Check,
    made: Scripted,
    prompts: list[list[int]],
    length: int,
    graphs: bool,
    overlap: bool,
    tree: TreeShape | None,
) -> dict[str, Any]:
    engine = Engine(
        made.target, made.head, max_batch=8, max_context=512, cuda_graphs=graphs, overlap=overlap, tree=tree
    )
    waits: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if check.gpu:
                torch.cuda.set_sync_debug_mode("warn")
            begun = time.perf_counter()
            found = engine.generate(prompts, max_tokens=length, ignore_eos=True)
            seconds = time.perf_counter() - begun
        finally:
            if check.gpu:
                torch.cuda.set_sync_debug_mode("default")
    for one in caught:
        if "synchroniz" in str(one.message):
            waits[f"{Path(one.filename).name}:{one.lineno}"] += 1
    right = sum(
        one.token_ids == made.answer(prompt, length) for one, prompt in zip(found, prompts, strict=True)
    )
    stats = engine.stats()
    return {
        "ok": right == len(prompts) and (tree is None or stats.tau > 1.2),
        "right": f"{right} of {len(prompts)}",
        "tau": round(stats.tau, 2),
        "rounds": stats.rounds,
        "s": round(seconds, 2),
        "waits": dict(waits),
    }


def _drawn(
    check: Check, made: Scripted, prompts: list[list[int]], length: int, options: dict[str, Any]
) -> dict[str, Any]:
    plain = Engine(made.target, max_batch=8, max_context=512, cuda_graphs=False, overlap=check.gpu)
    drafting = Engine(
        made.target, made.head, max_batch=8, max_context=512, tree=TreeShape(4, 2, 8), cuda_graphs=check.gpu
    )
    sampling = {"max_tokens": length, "ignore_eos": True, "seed": 5, **options}
    expected, found = (
        [one.token_ids for one in engine.generate(prompts, **sampling)]  # type: ignore[arg-type]
        for engine in (plain, drafting)
    )
    same = sum(one == other for one, other in zip(expected, found, strict=True))
    greedy = [made.answer(prompt, length) for prompt in prompts]
    return {
        "ok": same == len(prompts),
        "same": f"{same} of {len(prompts)}",
        "greedy": sum(one == other for one, other in zip(expected, greedy, strict=True)),
        "tau": round(drafting.stats().tau, 2),
    }


def float32(check: Check) -> None:
    """A tiny random target, whose tokens depend on all of its context: answers on the device and on a CPU."""
    shape = TinyShape(layers=4, hidden=128, heads=4, kv_heads=2, head_dim=32, positions=512)
    folder = str(save_tiny_target(Path(tempfile.mkdtemp()) / "llama", shape=shape))
    here, there = (
        Target.load(folder, dtype="float32", backend="torch", device=device)
        for device in ("cpu", str(check.device))
    )
    prompts = [
        [6 + (37 * number + 11 * place) % 500 for place in range(3 + 5 * number)] for number in range(6)
    ]
    length = 12 if check.small else 40
    head = Head.from_target(here, DraftVocabulary.from_counts(torch.arange(512, 0, -1), 300))
    for options in ({"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95}):
        for tree, graphs in ((None, False), (TreeShape(4, 3, 12, 6), False), (TreeShape(4, 3, 12, 6), True)):
            if graphs and not check.gpu:
                continue

            def compare(
                options: dict[str, float] = options, tree: TreeShape | None = tree, graphs: bool = graphs
            ) -> dict[str, Any]:
                sampling = {"max_tokens": length, "ignore_eos": True, "seed": 3, **options}
                expected = Engine(here, max_batch=4, max_context=256).generate(prompts, **sampling)  # type: ignore[arg-type]
                engine = Engine(
                    there, tree and head, max_batch=4, max_context=256, tree=tree, cuda_graphs=graphs
                )
                found = engine.generate(prompts, **sampling)  # type: ignore[arg-type]
                same = sum(a.token_ids == b.token_ids for a, b in zip(expected, found, strict=True))
                return {
                    "ok": same == len(prompts),
                    "same": f"{same} of {len(prompts)}",
                    "tau": engine.stats().tau,
                }

            check.case(
                f"{options}, {tree or 'plain'}, graphs {'on' if graphs else 'off'}", compare, least=60.0
            )
