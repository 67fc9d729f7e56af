"""How fast attention reads prefixes' keys and values, beside a device copy."""

from __future__ import annotations

from typing import Any

import torch

from fledge.attention import paged_attention
from fledge.target import ForwardBatch
from tests.gpu.record import Check

_PAGE, _HEADS, _KV_HEADS, _SIZE = 16, 32, 8, 128  # an 8B target's
_SHAPES = ((1, 1), (1, 16), (8, 1), (8, 16), (64, 1), (64, 4))  # requests, rows of each
_BYTES = 1 << 30  # a pass reads at least so many: several times a GPU's caches


def reads(check: Check) -> None:
    """By context, requests and rows: bytes of the prefixes per second, over the bytes that a copy moves per second."""
    for context in (256,) if check.small else (1024, 8192):
        for requests, rows in _SHAPES[:2] if check.small else _SHAPES:
            name = f"{requests} at once, {rows} rows each, context {context}"
            check.case(name, lambda c=context, n=requests, r=rows: _compare(check, c, n, r), least=20.0)


def _compare(check: Check, context: int, requests: int, rows: int) -> dict[str, Any]:
    device, generator = check.device, torch.Generator(check.device).manual_seed(0)
    dtype = torch.bfloat16 if check.gpu else torch.float32
    pages = -(-(context + rows) // _PAGE)

    def integers(values: Any) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=device)

    table = torch.randperm(requests * pages, generator=generator, device=device).view(requests, pages)
    batch = ForwardBatch(
        token_ids=integers([0] * (requests * rows)),
        positions=integers([*range(context, context + rows)] * requests),
        row_start=integers(range(0, requests * rows + 1, rows)),
        prefix_length=integers([context] * requests),
        window_offset=integers([0] * requests),
        page_table=table.to(torch.int32),
    )
    layer_bytes = requests * context * 2 * _KV_HEADS * _SIZE * dtype.itemsize
    layers = 2 if check.small else -(-_BYTES // layer_bytes)
    pool = torch.randn(requests * pages * _PAGE, _KV_HEADS, _SIZE, generator=generator, device=device).to(
        dtype
    )
    kept = [(pool.clone(), pool.clone()) for _ in range(layers)]
    query = torch.randn(requests * rows, _HEADS, _SIZE, generator=generator, device=device).to(dtype)
    attention = paged_attention(batch, _PAGE)

    def everything() -> None:
        for keys, values in kept:
            attention.attend(query, keys, values)

    everything()  # compiles
    run = everything
    if check.gpu:  # so that launches don't count
        check.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            everything()
        run = graph.replay
    count = layers * layer_bytes
    half = torch.empty(count // 2, dtype=torch.uint8, device=device)
    there = torch.empty_like(half)
    attended = count / check.ms(run, times=5, warm=1) / 1e6
    copied = count / check.ms(lambda: there.copy_(half), times=5, warm=1) / 1e6
    return {"gb_s": round(attended), "copy_gb_s": round(copied), "ratio": round(attended / copied, 3)}
