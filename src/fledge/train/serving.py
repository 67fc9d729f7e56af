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
from fledge.engine.batch import BatchSizes, RunningBatch
from fledge.engine.drafters.drafter import Prompts
from fledge.engine.drafters.eagle import Eagle, HeadSizes
from fledge.engine.params import SamplingParams
from fledge.engine.planner import RoundPlan
from fledge.engine.prefill import PrefillChunk, chunk_rows, following_tokens
from fledge.engine.request import Request
from fledge.engine.rounds.tree import accept
from fledge.engine.selection import SelectionRows
from fledge.engine.shapes import TreeShape
from fledge.features import FeatureSample
from fledge.heads import Head, head_runner
from fledge.target import Target
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
        shape, plan = self._shape, RoundPlan(self._shape)
        batch, eagle = self._prefilled(answers)
        rounds: list[DraftRound] = []
        lengths = [a.start for a in answers]
        while any(length < a.end - 1 for length, a in zip(lengths, answers, strict=True)):
            tree = eagle.propose(batch, plan).select(shape.nodes, shape.reach)
            # [B, D + 1], x[L + 1 .. L + D + 1], -1 beyond the answer
            truth = self._next_tokens(answers, lengths)
            accepted = accept(tree, truth.gather(1, tree.depths), shape.reach)
            emits = accepted.emits.tolist()
            for row, a in enumerate(answers):
                remaining = a.end - 1 - lengths[row]
                if remaining > 0:
                    taken = min(emits[row] - 1, remaining)
                    missed = taken < min(remaining, shape.depth) and bool(self._outside[truth[row, taken]])
                    rounds.append(
                        DraftRound(a.number, lengths[row], taken, min(emits[row], remaining), missed=missed)
                    )
            taken_tokens = accepted._replace(emitted=truth.clamp(min=0))
            eagle.follow(batch, taken_tokens, self._features(answers, lengths))
            batch.advance(accepted.emits, taken_tokens.emitted)
            lengths = [
                min(length + n, a.end - 1) for length, n, a in zip(lengths, emits, answers, strict=True)
            ]
            batch.view().length.copy_(torch.tensor(lengths, dtype=torch.int32))
        return rounds

    def _prefilled(self, answers: list[Answer]) -> tuple[RunningBatch, Eagle]:
        """A batch of these answers, the head run over every prompt: positions 0 .. start - 1, and the token after."""
        device, page = self._target.device, self._runner.page_size
        longest = max(a.end for a in answers) + self._shape.window + self._shape.depth + 1
        each = -(-longest // page)
        sizes = HeadSizes(
            rows=len(answers),
            pages=each,
            pool=len(answers) * each + 1,
            topk=self._shape.topk,
            features=1,
            pending=0,
            last_position=self._target.config.max_position_embeddings - 1,
        )
        selection = SelectionRows(len(answers), self._target.config.vocab_size, device)
        eagle = Eagle(self._runner, sizes, selection, self._target.decoder.dtype, device)
        batch = RunningBatch(BatchSizes(len(answers), each), device, [selection, eagle])
        chosen = torch.tensor([int(a.sample.token_ids[a.start]) for a in answers], device=device)
        chunks = []
        for row, a in enumerate(answers):
            request = Request(
                a.sample.token_ids[: a.start].tolist(),
                SamplingParams(temperature=0.0),
                seed=0,
                stop_ids=frozenset(),
                speculate=True,
                sink=None,
                id=row,
            )
            pages = tuple(range(1 + row * each, 1 + (row + 1) * each))
            chunks.append(PrefillChunk(request, 0, a.start, pages))
            batch.append(request, pages, chosen[row])
        features = torch.cat([a.sample.features[: a.start] for a in answers]).to(device)
        starts = [a.start for a in answers]
        prompts = Prompts(
            chunk_rows(chunks, device),
            following_tokens(chunks, chosen, device),
            features,
            [0] * len(starts),
            starts,
            starts,
        )
        eagle.join(prompts, range(len(answers)), 0, eagle.prefill(prompts))
        return batch, eagle

    def _next_tokens(self, answers: list[Answer], lengths: list[int]) -> Tensor:
        """The target's tokens after each answer's bonus token, [B, D + 1] int64, -1 beyond its end."""
        truth = torch.full((len(answers), self._shape.depth + 1), -1, dtype=torch.int64)
        for row, (a, length) in enumerate(zip(answers, lengths, strict=True)):
            following = a.sample.token_ids[length + 1 : min(a.end, length + 2 + self._shape.depth)]
            truth[row, : len(following)] = following
        return truth.to(self._target.device)

    def _features(self, answers: list[Answer], lengths: list[int]) -> Tensor:
        """[B * (D + 1), 3 * Ht], those of the stored tokens from L on."""
        width = self._shape.depth + 1
        rows = [
            a.sample.features[torch.arange(n, n + width).clamp_(max=a.end - 1)]
            for a, n in zip(answers, lengths, strict=True)
        ]
        return torch.cat(rows).to(self._target.device)


def _answers(samples: Sequence[FeatureSample]) -> Iterator[Answer]:
    """Every generated run of at least two tokens that has a prompt."""
    for number, sample in enumerate(samples):
        mask = sample.loss_mask.bool()
        edges = torch.cat((mask.new_zeros(1), mask, mask.new_zeros(1))).int().diff()
        starts, ends = edges.eq(1).nonzero().flatten().tolist(), edges.eq(-1).nonzero().flatten().tolist()
        for start, end in zip(starts, ends, strict=True):
            if start > 0 and end - start > 1:
                yield Answer(number, sample, start, end)
