"""How fast attention reads the KV pool of a GPU, compared with a plain copy on the same device.

Every row sees the whole prefix of its request, in every layer. At long contexts that is most of what a round reads, so
attention should run at memory speed.

    attention   bytes of the prefixes' keys and values / seconds; rows of one request share one read
    copy        bytes read and written / seconds, for the same number of bytes in total

Layers are read one after another, each with its own keys and values, so that no call finds data in a cache from the
previous one. A pass is recorded and launched at once, so that the timing covers microsecond kernels, not their
launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.forwards import median_ms
from benchmarks.ratios.line import Ratio, single
from fledge.attention import paged_attention
from fledge.engine.rounds.graphs import Recorder
from fledge.target import ForwardBatch, Target

_SIZES = ((1, 1), (1, 16), (8, 1), (8, 16), (64, 1), (64, 4))  # requests, rows of each
_BYTES = 1 << 30  # minimum per pass: several times the size of a GPU's caches


class Pass(NamedTuple):
    """Attention of a round, layer after layer."""

    run: Callable[[], list[Tensor]]  # each layer's output [R, heads, D]
    layers: list[tuple[Tensor, Tensor]]  # keys and values [slots, kv_heads, D]
    query: Tensor  # [R, heads, D]
    batch: ForwardBatch
    read_bytes: int  # of the prefixes' keys and values, in all layers


def kv_reads(target: Target, recorder: Recorder, contexts: Sequence[int], repeats: int) -> Iterator[Ratio]:
    """Bytes per second that attention reads, over those of a copy."""
    device = target.decoder.device
    for context in contexts:
        for requests, rows in _SIZES:
            attention_pass = make_pass(target, requests, rows, context, _BYTES)
            attention_pass.run()  # compiles
            half = attention_pass.read_bytes // 2
            source, copy = (torch.empty(half, dtype=torch.uint8, device=device) for _ in range(2))
            calls: dict[str | int, Callable[[], object]] = {
                "attention": recorder.record(attention_pass.run).replay,
                "copy": partial(copy.copy_, source),
            }
            ms = median_ms(calls, repeats, device)
            speeds = {name: attention_pass.read_bytes / (1e6 * spent) for name, spent in ms.items()}
            what = f"attention's reads over a copy's, {requests} at once, {rows} rows each, context {context}"
            yield single(what, speeds["copy"], speeds["attention"], "GB/s")


def make_pass(target: Target, requests: int, rows: int, context: int, least_bytes: int) -> Pass:
    """`rows` rows, a chain, after `context` tokens of each request, in pages in random order.

    It has as many layers as needed to read `least_bytes`, regardless of the target's.
    """
    decoder, config = target.decoder, target.config
    generator = torch.Generator().manual_seed(0)
    pages = -(-(context + rows) // decoder.page_size)

    def integers(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=decoder.device)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(decoder.device, decoder.dtype)

    table = torch.randperm(requests * pages, generator=generator).view(requests, pages)
    batch = ForwardBatch(
        token_ids=integers([0] * (requests * rows)),
        positions=integers([*range(context, context + rows)] * requests),
        row_start=integers(range(0, requests * rows + 1, rows)),
        prefix_length=integers([context] * requests),
        window_offset=integers([0] * requests),
        page_table=table.to(decoder.device, torch.int32),
    )
    entry = 2 * config.num_kv_heads * config.head_dim * decoder.dtype.itemsize
    layer_bytes = requests * context * entry
    pool = random(requests * pages * decoder.page_size, config.num_kv_heads, config.head_dim)
    layers = [(pool.clone(), pool.clone()) for _ in range(math.ceil(least_bytes / layer_bytes))]
    query = random(requests * rows, config.num_heads, config.head_dim)
    attention = paged_attention(batch, decoder.page_size)
    return Pass(
        run=lambda: [attention.attend(query, keys, values) for keys, values in layers],
        layers=layers,
        query=query,
        batch=batch,
        read_bytes=len(layers) * layer_bytes,
    )
