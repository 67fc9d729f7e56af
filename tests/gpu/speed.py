"""An 8B-shaped target: what forwards take by rows, and tokens per second by batch and mode."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from fledge.engine import Engine, TreeShape
from fledge.engine.measure import _batch
from tests.gpu.record import Check
from tests.gpu.script import LLAMA_8B, TINY, Scripted, scripted

_CHAIN, _SMALL_TREE, _TREE = TreeShape(2, 1, 3), TreeShape(4, 1, 5), TreeShape(5, 8, 32)
# Name, whether there is a head, the tree (None: the planner's), graphs, overlap; those first that say most.
_MODES: tuple[tuple[str, bool, TreeShape | None, bool, bool], ...] = (
    ("plain", False, None, True, True),
    ("planner", True, None, True, True),
    ("4 levels, 5 nodes", True, _SMALL_TREE, True, True),
    ("5 levels, 32 nodes", True, _TREE, True, True),
    ("2 levels, 3 nodes", True, _CHAIN, True, True),
    ("plain, no graphs", False, None, False, True),
    ("5 levels, 32 nodes, no graphs", True, _TREE, False, True),
    ("5 levels, 32 nodes, no graphs, no overlap", True, _TREE, False, False),
    ("planner, no graphs", True, None, False, True),
)


def speed(check: Check) -> None:
    """The target is made when the first case needs it."""

    @cache
    def made() -> Scripted:
        dtype = torch.bfloat16 if check.gpu else torch.float32
        return scripted(TINY if check.small else LLAMA_8B, check.device, dtype, rate=0.75)

    check.case("forwards by rows", lambda: _forwards(check, made()), least=60.0)
    for requests in (1, 2) if check.small else (1, 64, 16, 4):
        for name, head, tree, graphs, overlap in _MODES if check.gpu else _MODES[:2]:
            if not check.gpu:
                graphs = overlap = False
            work = partial(_tokens, check, made, requests, head, tree, graphs, overlap)
            check.case(f"{name}, {requests} at once", work, least=40.0)


def _forwards(check: Check, made: Scripted) -> dict[str, Any]:
    """Milliseconds launched kernel by kernel and replayed, and what the planner measured."""
    engine = Engine(made.target, made.head, max_batch=4 if check.small else 64, max_context=1024)
    core, found = engine._core, dict[str, Any]()
    target, cost = core._target, core._planner.speeds.costs.model.target
    sizes = (1, 8, 32) if check.small else (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    with torch.inference_mode():
        for rows in sizes:
            width = min(rows, 16)
            batch = _batch(rows // width, width, target)
            run = partial(target.decoder.forward, batch, target.kv, logits="argmax", features=True)
            eager = check.ms(run, times=5, warm=2)
            replayed = None
            if check.gpu:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    kept = run()
                replayed = check.ms(graph.replay, times=10, warm=2)
                del kept
            found[str(rows)] = {
                "eager": round(eager, 3),
                "replayed": replayed and round(replayed, 3),
                "planner": round(1e3 * cost.at(rows), 3),
            }
    return {"ms_by_rows": found, "planner_rows": cost.rows}


def _tokens(
    check: Check,
    make: Callable[[], Scripted],
    requests: int,
    head: bool,
    tree: TreeShape | None,
    graphs: bool,
    overlap: bool,
) -> dict[str, Any]:
    made = make()
    begun = time.perf_counter()
    engine = Engine(
        made.target, made.head if head else None, max_batch=requests, max_context=1024, prefix_cache=False,
        tree=tree, cuda_graphs=graphs, overlap=overlap,
    )  # fmt: skip
    started = time.perf_counter() - begun
    warm, length = (8, 12) if check.small else (96, 192)
    prompts = made.prompts(requests, 64)
    engine.generate(prompts, max_tokens=warm, ignore_eos=True)  # compiles, and the planner learns
    engine._core.restart_stats()
    check.wait()
    begun = time.perf_counter()
    found = engine.generate(prompts, max_tokens=length, ignore_eos=True)
    seconds = time.perf_counter() - begun
    stats = engine.stats()
    rounds = max(stats.rounds, 1)
    right = sum(
        one.token_ids == made.answer(prompt, length) for one, prompt in zip(found, prompts, strict=True)
    )
    return {
        "ok": right == requests,
        "tokens_s": round(requests * length / seconds),
        "ms_per_round": round(1e3 * seconds / rounds, 3),
        "host_ms_per_round": round(1e3 * stats.phases.host / rounds, 3),
        "tau": round(stats.tau, 3),
        "start_s": round(started, 2),
        "shapes": [f"{one.shape} x {one.rounds}" for one in stats.shapes[:3]],
        "gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if check.gpu else None,
    }
