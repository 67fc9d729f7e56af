"""Serving, replayed from stored features: the engine's own drafting, with the stored answer in place of verification.

    engine        draft -> verify (target forward) -> accept -> extend
    here          draft -> the answer's next tokens -> accept -> extend, with stored features

A greedy target would choose exactly the tokens of its stored answer, so the tree's accepted path is known without
running the target. The result is the engine's tau at this tree shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.data.options import Progress, silent
from fledge.engine.carried import Carried, CarriedSizes, RunningBatch
from fledge.engine.forwards import Models, run_head
from fledge.engine.layout import Layouts, RowLayout
from fledge.engine.planner import RoundPlan
from fledge.engine.round import accept, draft
from fledge.engine.shapes import TreeShape
from fledge.features import FeatureSample
from fledge.heads import Head, head_runner
from fledge.target import Target
from fledge.target.batch import ForwardBatch
from fledge.train.acceptance import DraftRound

_ANSWERS = 16  # replayed per batch


class Answer(NamedTuple):
    """Tokens start .. end - 1 of a conversation, generated in one go; the first comes from the prompt's forward."""

    number: int  # index of the conversation
    sample: FeatureSample
    start: int
    end: int


class ServingReplay:
    """Replays stored answers with one target, head and tree shape."""

    def __init__(self, target: Target, head: Head, shape: TreeShape) -> None:
        self._target, self._shape = target, shape
        self._runner = head_runner(target, head)
        self._outside = ~head.vocabulary.t2d  # [V]
        self._layouts = Layouts(target.device)

    @torch.inference_mode()
    def rounds(self, samples: Sequence[FeatureSample], progress: Progress = silent) -> list[DraftRound]:
        """All rounds of all answers of these conversations."""
        waiting = sorted(_answers(samples), key=lambda a: a.end - a.start)
        rounds: list[DraftRound] = []
        for first in range(0, len(waiting), _ANSWERS):
            rounds += self._replay(waiting[first : first + _ANSWERS])
            progress(min(first + _ANSWERS, len(waiting)), len(waiting), "")
        return rounds

    def _replay(self, answers: list[Answer]) -> list[DraftRound]:
        """The rounds of up to _ANSWERS answers. A finished answer is still drafted for, but not counted."""
        shape, size = self._shape, len(answers)
        models, pages = self._models(answers)
        layout, plan = self._layouts.verify(size, shape.nodes, shape.reach), RoundPlan(shape)
        batch = self._prefilled(models, answers, pages)
        now = batch.view()
        rounds: list[DraftRound] = []
        lengths = [a.start for a in answers]
        while any(length < a.end - 1 for length, a in zip(lengths, answers, strict=True)):
            tree = draft(models, batch, plan).tree
            # [B, D + 1], x[L + 1 .. L + D + 1], -1 beyond the answer
            truth = self._next_tokens(answers, lengths)
            accepted = accept(tree, truth.gather(1, tree.depths), layout)
            emits = accepted.emits.tolist()
            for row, a in enumerate(answers):
                remaining = a.end - 1 - lengths[row]
                if remaining > 0:
                    taken = min(emits[row] - 1, remaining)
                    missed = taken < min(remaining, shape.depth) and bool(self._outside[truth[row, taken]])
                    rounds.append(
                        DraftRound(a.number, lengths[row], taken, min(emits[row], remaining), missed=missed)
                    )
            self._extend(models, now, layout.path_rows, answers, lengths, truth, accepted.emits)
            lengths = [
                min(length + n, a.end - 1) for length, n, a in zip(lengths, emits, answers, strict=True)
            ]
        return rounds

    def _models(self, answers: list[Answer]) -> tuple[Models, Tensor]:
        """The head with a KV pool for these answers, and their page table [B, P]."""
        size = self._runner.page_size
        longest = max(a.end for a in answers) + self._shape.window + self._shape.depth + 1
        each = -(-longest // size)
        device = self._target.device
        pages = torch.arange(len(answers) * each, dtype=torch.int32, device=device).view(-1, each) + 1
        count = pages.numel() + 1
        models = Models(
            decoder=self._target.decoder,
            kv=torch.empty(0),
            head=self._runner,
            head_kv=self._runner.allocate_kv(count),
            pages=count,
            sampler=None,
            drawn=None,
            layouts=self._layouts,
            last_position=self._target.config.max_position_embeddings - 1,
            topk=self._shape.topk,
        )
        return models, pages

    def _prefilled(self, models: Models, answers: list[Answer], pages: Tensor) -> RunningBatch:
        """Run the head over every prompt: positions 0 .. start - 1, each with the token after it."""
        device, lengths = self._target.device, [a.start for a in answers]
        length = torch.tensor(lengths, dtype=torch.int32, device=device)
        ends = length.cumsum(0).to(torch.int32)
        rows = ForwardBatch(
            token_ids=torch.cat([a.sample.token_ids[1 : a.start + 1] for a in answers]).int().to(device),
            positions=torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths]).to(device),
            row_start=torch.cat((ends.new_zeros(1), ends)),
            prefix_length=torch.zeros_like(length),
            window_offset=torch.zeros_like(length),
            page_table=pages,
            logit_rows=ends - 1,
        )
        features = torch.cat([a.sample.features[: a.start] for a in answers]).to(device)
        assert models.head is not None
        assert models.head_kv is not None
        out = models.head.forward(rows, models.head_kv, features=features, hidden=None, k=models.topk)
        c = self._runner.config
        sizes = CarriedSizes(
            rows=len(answers),
            pages=pages.shape[1],
            topk=models.topk,
            hidden=c.hidden_size,
            features=1,
            vocabulary=self._target.config.vocab_size,
            dtype=out.hidden.dtype,
            pending=0,
        )
        batch = RunningBatch(sizes, self._runner.page_size, device)
        batch.size = len(answers)
        now = batch.view()
        now.length.copy_(length)
        now.bonus.copy_(torch.tensor([int(a.sample.token_ids[a.start]) for a in answers]))
        now.page_table.copy_(pages)
        now.head_pages.copy_(pages)
        now.first_token_ids.copy_(out.token_ids)
        now.first_log_probs.copy_(out.log_probs)
        now.hidden.copy_(out.hidden)
        return batch

    def _next_tokens(self, answers: list[Answer], lengths: list[int]) -> Tensor:
        """The target's tokens after each answer's bonus token, [B, D + 1] int64, -1 beyond its end."""
        truth = torch.full((len(answers), self._shape.depth + 1), -1, dtype=torch.int64)
        for row, (a, length) in enumerate(zip(answers, lengths, strict=True)):
            following = a.sample.token_ids[length + 1 : min(a.end, length + 2 + self._shape.depth)]
            truth[row, : len(following)] = following
        return truth.to(self._target.device)

    def _extend(
        self,
        models: Models,
        now: Carried,
        layout: RowLayout,
        answers: list[Answer],
        lengths: list[int],
        truth: Tensor,
        emits: Tensor,
    ) -> None:
        """Run the head over the accepted path, in the engine's fixed shape, with the features of the stored tokens."""
        width = truth.shape[1]
        features = torch.cat(
            [
                a.sample.features[torch.arange(n, n + width).clamp_(max=a.end - 1)]
                for a, n in zip(answers, lengths, strict=True)
            ]
        ).to(self._target.device)
        last = layout.first_row + (emits - 1)
        positions = (now.length[:, None] + layout.steps).view(-1)
        out = run_head(models, now, layout, positions, truth.clamp(min=0).view(-1), features, last, None)
        now.first_token_ids.copy_(out.token_ids)
        now.first_log_probs.copy_(out.log_probs)
        now.hidden.copy_(out.hidden)
        ends = torch.tensor([a.end - 1 for a in answers], dtype=torch.int32, device=self._target.device)
        now.bonus.copy_(truth.clamp(min=0).view(-1).index_select(0, last))
        now.length.copy_(torch.minimum(now.length + emits, ends))


def _answers(samples: Sequence[FeatureSample]) -> Iterator[Answer]:
    """Every generated run of at least two tokens that has a prompt."""
    for number, sample in enumerate(samples):
        mask = sample.loss_mask.bool()
        edges = torch.cat((mask.new_zeros(1), mask, mask.new_zeros(1))).int().diff()
        starts, ends = edges.eq(1).nonzero().flatten().tolist(), edges.eq(-1).nonzero().flatten().tolist()
        for start, end in zip(starts, ends, strict=True):
            if start > 0 and end - start > 1:
                yield Answer(number, sample, start, end)
