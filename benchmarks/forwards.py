"""Single forwards: a plain step, verifies by rows, one draft step.

    speed-up = tau * t_plain / (t_draft + t_verify + t_extend + t_host_exposed)

All sizes are timed in turn, repeatedly, so that drift of the machine affects them equally; the medians count. The
tokens are real text (our own prompts), since the CPU kernels read less of an lm_head if the next token
is certain (`native/screen.h`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, cycle, islice
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.bench.statistics import alternation
from fledge.bench.workloads import own_workload
from fledge.draft import HeadRunner
from fledge.engine.flight import seconds_of
from fledge.native.abi import MOST_NODES
from fledge.target import ForwardBatch, Target

_ROOM = MOST_NODES  # rows after the context


class Costs(NamedTuple):
    """Milliseconds of forwards after a context."""

    plain_step: float
    verify: dict[int, float]  # by rows
    draft_step: float


def measure_costs(
    target: Target, runner: HeadRunner, *, rows: Sequence[int], draft_rows: int, context: int, repeats: int
) -> Costs:
    """Time the target's forwards and one draft step of `draft_rows` nodes."""
    decoder = target.decoder
    maker = BatchMaker(target, context)
    kv = decoder.allocate_kv(maker.pages)
    decoder.forward(maker.prompt(), kv, logits="none")  # real keys and values to attend to
    plain = maker.window(1, tree=False)

    def verify(count: int) -> Callable[[], object]:
        batch = maker.window(count, tree=True)
        return lambda: decoder.forward(batch, kv, logits="argmax", features=True)

    calls: dict[str | int, Callable[[], object]] = {
        "plain": lambda: decoder.forward(plain, kv, logits="argmax"),
        **{count: verify(count) for count in sorted(set(rows))},
        "draft": draft_step(runner, maker, target, draft_rows),
    }
    times = median_ms(calls, repeats, decoder.device)
    return Costs(times["plain"], {count: times[count] for count in rows}, times["draft"])


class BatchMaker:
    """Batches of one request with a prefix of `context` tokens."""

    def __init__(self, target: Target, context: int) -> None:
        self._device, self._context = target.decoder.device, context
        self.pages = -(-(context + _ROOM) // target.decoder.page_size)
        self._page_table = self._integers(range(self.pages)).unsqueeze(0)
        prompts = chain.from_iterable(own_workload().token_ids(target))
        self._text = list(islice(cycle(prompts), context + _ROOM))

    def prompt(self) -> ForwardBatch:
        """The prefix itself."""
        return self._batch(self._context, prefix=0, positions=list(range(self._context)), mask=None)

    def window(self, rows: int, *, tree: bool) -> ForwardBatch:
        """`rows` rows after the prefix: the nodes of a binary tree, or causal."""
        parents = [(row - 1) // 2 if tree else row - 1 for row in range(rows)]
        seen, depths = [1], [0]
        for row in range(1, rows):
            seen.append(seen[parents[row]] | 1 << row)
            depths.append(depths[parents[row]] + 1)
        signed = [bits - (1 << 64) if bits >= 1 << 63 else bits for bits in seen]
        mask = torch.tensor(signed, dtype=torch.int64, device=self._device) if tree else None
        return self._batch(
            rows, prefix=self._context, positions=[self._context + d for d in depths], mask=mask
        )

    def siblings(self, rows: int) -> ForwardBatch:
        """One draft step: nodes that each see the prefix and themselves."""
        mask = torch.tensor([1 << row for row in range(rows)], dtype=torch.int64, device=self._device)
        return self._batch(rows, prefix=self._context, positions=[self._context] * rows, mask=mask)

    def _batch(
        self, rows: int, *, prefix: int, positions: Sequence[int], mask: Tensor | None
    ) -> ForwardBatch:
        return ForwardBatch(
            token_ids=self._integers(self._text[prefix : prefix + rows]),
            positions=self._integers(positions),
            row_start=self._integers([0, rows]),
            prefix_length=self._integers([prefix]),
            window_offset=self._integers([0]),
            page_table=self._page_table,
            window_mask=mask,
        )

    def _integers(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._device)


def draft_step(
    runner: HeadRunner, maker: BatchMaker, target: Target, draft_rows: int
) -> Callable[[], object]:
    """A call of one draft step: `draft_rows` nodes side by side behind the prefix."""
    device, size = target.decoder.device, target.config.hidden_size
    kv, draft = runner.allocate_kv(maker.pages), maker.siblings(draft_rows)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 3 * size, generator=generator).to(device, target.decoder.dtype)
    hidden = runner.forward(
        maker.window(1, tree=False), kv, features=features, hidden=None, k=draft_rows
    ).hidden
    parents = hidden.expand(draft_rows, -1).contiguous()
    return lambda: runner.forward(draft, kv, features=None, hidden=parents, k=draft_rows)


def median_ms(
    calls: Mapping[str | int, Callable[[], object]],
    repeats: int,
    device: torch.device,
    before: Callable[[], object] = lambda: None,
) -> dict[str | int, float]:
    """Median milliseconds of each call, after two warm-up rounds; `before` is called before each, and not timed."""
    times: dict[str | int, list[float]] = {name: [] for name in calls}
    for repeat, names in enumerate(alternation(list(calls), repeats + 2)):
        for name in names:
            before()
            seconds = seconds_of(calls[name], device)
            if repeat >= 2:
                times[name].append(seconds * 1e3)
    return {name: median(values) for name, values in times.items()}
