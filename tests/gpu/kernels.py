"""The Triton attention against plain torch in float32, at the shapes of rounds."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fledge.attention import PagedAttention, Window
from fledge.target import ForwardBatch
from tests.gpu.record import Check

PAGE = 16
_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32


class Case(NamedTuple):
    """`width` rows for each of `requests`, whose prefixes take these lengths in turn."""

    name: str
    requests: int
    width: int
    prefix: tuple[int, ...]
    heads: int
    kv_heads: int
    size: int
    dtype: torch.dtype = _BF16
    tree: bool = False
    window: int = 0
    sinks: bool = False
    slots: int = 0  # of the pool at least


CASES = [
    Case("8B, tree, 1 request", 1, 16, (1000,), 32, 8, 128, tree=True),
    Case("8B, plain, 1 request, long", 1, 1, (20000,), 32, 8, 128),
    Case("8B, trees, 17 ragged requests", 17, 16, (0, 5, 511, 512, 3000), 32, 8, 128, tree=True),
    Case("8B, prompts", 3, 300, (0, 700), 32, 8, 128),
    Case("pool beyond 2^31 elements", 2, 4, (900,), 32, 8, 128, tree=True, slots=(2 << 20) + 4096),
    Case("SmolLM2, trees", 8, 32, (700,), 9, 3, 64, tree=True),
    Case("Gemma 3, window", 2, 8, (1500,), 8, 4, 256, tree=True, window=512),
    Case("GPT-OSS, window and sinks", 2, 8, (1500,), 64, 8, 64, tree=True, window=128, sinks=True),
    Case("5 heads for one, fp16", 2, 8, (600,), 10, 2, 80, _FP16),
    Case("float32", 2, 8, (600,), 4, 2, 64, _FP32, tree=True),
]
SMALL = [
    Case("trees", 3, 6, (0, 5, 33), 4, 2, 32, _FP32, tree=True),
    Case("window and sinks", 2, 3, (150,), 4, 2, 32, _FP32, window=64, sinks=True),
]


def kernels(check: Check) -> None:
    """Every case's largest error, and what a call takes."""
    for case in SMALL if check.small else CASES:
        check.case(case.name, lambda case=case: _compare(check, case), least=60.0)


def _compare(check: Check, case: Case) -> dict[str, Any]:
    from fledge.attention.triton import TritonAttention  # without Triton the other parts go on

    device, generator = check.device, torch.Generator(check.device).manual_seed(1)
    rows = case.requests * case.width
    pages = -(-(max(case.prefix) + case.width) // PAGE)
    slots = max((case.requests * pages + 1) * PAGE, case.slots)
    table = torch.randperm(slots // PAGE, generator=generator, device=device)[-case.requests * pages :]
    table = table.view(case.requests, pages).to(torch.int32)
    if case.slots:  # the last page is far out
        table[-1, -1] = slots // PAGE - 1
    batch = ForwardBatch(
        token_ids=_int32([0] * rows, device),
        positions=_int32([0] * rows, device),
        row_start=_int32(range(0, rows + 1, case.width), device),
        prefix_length=_int32([case.prefix[n % len(case.prefix)] for n in range(case.requests)], device),
        window_offset=_int32([0] * case.requests, device),
        page_table=table,
        window_mask=_tree_masks(case, device) if case.tree else None,
    )
    query = torch.randn(rows, case.heads, case.size, generator=generator, device=device).to(case.dtype)
    keys, values = (
        torch.empty(slots, case.kv_heads, case.size, device=device, dtype=case.dtype).normal_(
            generator=generator
        )
        for _ in range(2)
    )
    sinks = torch.randn(case.heads, generator=generator, device=device).to(case.dtype) if case.sinks else None
    begun = time.perf_counter()
    attention = TritonAttention(batch, PAGE, Window(case.window))
    out = attention.attend(query, keys, values, sinks)
    check.wait()
    first = time.perf_counter() - begun
    us = None if check.small else 1e3 * check.ms(lambda: attention.attend(query, keys, values, sinks))
    # The reference over those pages alone that are in use.
    used = (table.flatten().long()[:, None] * PAGE + torch.arange(PAGE, device=device)).flatten()
    near = batch._replace(
        page_table=torch.arange(table.numel(), device=device, dtype=torch.int32).view_as(table)
    )
    reference = PagedAttention(near, PAGE, Window(case.window)).attend(
        query.float(), keys[used].float(), values[used].float(), None if sinks is None else sinks.float()
    )
    error = float((out.float() - reference).abs().max())
    limit = 1e-4 if case.dtype == _FP32 else 3e-2
    return {
        "ok": error < limit,
        "error": round(error, 6),
        "first_s": round(first, 2),
        "us": us and round(us, 1),
    }


def _int32(values: Any, device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32, device=device)


def _tree_masks(case: Case, device: torch.device) -> Tensor:
    """Node n hangs below node (n - 1) // 2."""
    masks: list[int] = []
    for node in range(case.width):
        masks.append((masks[(node - 1) // 2] if node else 0) | 1 << node)
    return torch.tensor(masks * case.requests, dtype=torch.int64, device=device)
