"""Evidence from forwards: how often the head's first proposal is the target's own next token, as it is and with one
suspected mistake undone. If undoing it makes the head clearly better, the head has that fault.

    answer of the target    a  b  c  d  e        head reads features and ids up to c
    head's proposals           b  x  d  e        hits: 3 of 4
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.doctor.findings import Finding
from fledge.doctor.hypotheses import Hypothesis, Trial, hypotheses, other_layers
from fledge.draft.runner import TorchHeadRunner
from fledge.engine import Completion
from fledge.heads import Head
from fledge.target import Target, TorchDecoder
from fledge.target.batch import ForwardBatch, one_sequence

_CLEARLY = 0.05  # more hits than this, and a fifth more, make a suspicion a finding
_CLEARLY_IF_LOW = 1.1  # instead of a fifth, of a head that is known to accept too little
_SCREENED = 128  # rows on which every hypothesis is tried; the most promising are tried on all
_CONFIRMED = 4  # specific ones, and general ones
_TIE = 0.01  # fewer hits more than an earlier one aren't better
_FAULTS = 3  # found one after the other, each with the earlier ones undone
_RELATED = 0.3  # cosine of a draft row with its own target row: the lm_head stems from the target's
_ROWS = 1024  # draft rows compared with the target's at most
_PAGE = 16


class Score(NamedTuple):
    """How well the head predicts, over all answers."""

    hits: float  # share of rows whose first proposal is the target's token; tokens outside its vocabulary are misses
    largest: float  # largest magnitude of features, of fc's output, and of the head's own state


class Probe:
    """Scores a head, and the head with suspected faults undone, on a target's answers."""

    STEPS = 2  # the head as it is, and the hypotheses

    def __init__(
        self,
        target: Target,
        answers: Sequence[Completion],
        begins: Callable[[str], None] = lambda what: None,
    ) -> None:
        """`begins` is called before each step."""
        self._target = target
        self._begins = begins
        self.answers = [a for a in answers if len(a.token_ids) > 1]
        self._positions = max((len(a.prompt_token_ids + a.token_ids) for a in self.answers), default=1)
        counts = accumulate(len(a.token_ids) - 1 for a in self.answers)
        self._screened = sum(before < _SCREENED for before in [0, *counts][:-1])

    def score(self, head: Head, layers: Sequence[int] | None = None) -> Score:
        """The head's score. `layers`: whose outputs it is given; None: the target's feature layers."""
        self._begins("the head proposes")
        return self._score(self._trial(head, layers), len(self.answers))

    def findings(self, head: Head, score: Score, *, expected: float = 0.0) -> Iterator[Finding]:
        """The faults that, when undone, make the head clearly better. `expected`: the least hits of a sound one."""
        self._begins("mistakes are undone")
        misplaced = list(self._rows(head))
        yield from misplaced
        trial, hits = self._trial(head, None), score.hits
        for number in range(_FAULTS):
            if number and 0 < expected <= hits:
                break
            candidates = hypotheses(trial, self._target)
            if misplaced:  # lm_head's order is named already
                candidates = (one for one in candidates if one.fault not in ("lm-head", "vocabulary-order"))
            least = _CLEARLY_IF_LOW if hits < expected else 1.2
            found = self._best(trial, hits, candidates, least)
            if hits < expected and (found is None or found[1] < expected):  # that isn't it, or not all of it
                others = self._best(trial, hits, other_layers(trial, self._target), least)
                found = max(filter(None, (found, others)), key=lambda pair: pair[1], default=None)
            if found is None:
                break
            hypothesis, better = found
            yield Finding(
                hypothesis.fault,
                f"with {hypothesis.undone} {better:.0%} of first proposals are right instead of {hits:.0%}",
                hypothesis.remedy,
                certain=better >= expected,  # else something else is wrong, too
            )
            if hypothesis.general:
                break
            trial, hits = hypothesis.undo(trial), better

    def _best(
        self, trial: Trial, hits: float, candidates: Iterable[Hypothesis], least: float
    ) -> tuple[Hypothesis, float] | None:
        """The hypothesis that raises `hits` most, with its own; None if none raises them to `least` times as many.

        A general one has to be clearly better than all specific ones.
        """
        screened = self._score(trial, self._screened).hits
        # General or not, in the order of the list.
        promising: dict[bool, list[tuple[Hypothesis, float]]] = {False: [], True: []}
        for one in candidates:
            share = self._score(one.undo(trial), self._screened).hits
            if _better(share, screened, least):
                promising[one.general] = _most_hits([*promising[one.general], (one, share)])
        best: tuple[Hypothesis, float] | None = None
        for general, tried in promising.items():
            for one, _ in tried:
                gain = self._score(one.undo(trial), len(self.answers)).hits
                ahead = _CLEARLY if general and best is not None and not best[0].general else _TIE
                if best is None or gain > best[1] + ahead:
                    best = one, gain
        return best if best is not None and _better(best[1], hits, least) else None

    def _trial(self, head: Head, layers: Sequence[int] | None) -> Trial:
        # A recorded other target is a finding already, not an error here.
        head = Head(head.config, head.weights.to(torch.float32)).fitted_to(self._target)
        config = replace(
            head.config, max_position_embeddings=self._positions
        )  # RoPE tables no longer than needed
        head = Head(config, head.weights)
        low, middle, high = self._target.config.feature_layers if layers is None else layers
        return Trial(head, (low, middle, high))

    def _score(self, trial: Trial, count: int) -> Score:
        """Over the first `count` answers."""
        head, answers = trial.head, self.answers[:count]
        embedding = self._embedding if head.weights.embedding is None else head.weights.embedding
        runner = TorchHeadRunner(head.config, head.weights, embedding, page_size=_PAGE)
        batch, expected = _batch(answers)
        kv = runner.allocate_kv(batch.page_table.numel())
        read = [states[:, list(trial.layers)].flatten(1) for states in self._features[:count]]
        features = torch.cat(read).float()  # [R, 3 * Ht]
        out = runner.forward(batch, kv, features=features, hidden=None, k=1)
        entry = F.linear(features, head.weights.fc) if head.weights.fc_norms is None else features
        largest = max(float(t.abs().max()) for t in (features, entry, out.hidden))
        return Score(float((out.token_ids[:, 0] == expected).float().mean()), largest)

    def _rows(self, head: Head) -> Iterator[Finding]:
        """Whether rows of the head's lm_head resemble other tokens' rows of the target's."""
        if head.config.hidden_size != head.config.target_hidden_size:
            return
        sample = torch.linspace(
            0, head.config.draft_vocab_size - 1, min(_ROWS, head.config.draft_vocab_size)
        ).long()
        ids = head.vocabulary.token_ids[sample]
        mine = F.normalize(head.weights.lm_head[sample].float(), dim=-1)
        theirs = F.normalize(self._target.ends.lm_head[ids].float().cpu(), dim=-1)
        cosines = mine @ theirs.T  # [rows, rows]
        matching, best = cosines.diagonal().median(), cosines.max(dim=1).values.median()
        misplaced = float((cosines.argmax(dim=1) != torch.arange(len(ids))).float().mean())
        chance = math.sqrt(2 * math.log(len(ids)) / head.config.hidden_size)  # the best of unrelated rows
        if (
            float(best) > max(_RELATED, 1.5 * chance)
            and float(matching) < float(best) / 2
            and misplaced > 0.5
        ):
            yield Finding(
                "vocabulary-order",
                f"{misplaced:.0%} of the rows of lm_head look like the target's rows of other tokens than d2t says",
                "export the head again from where it was trained: lm_head and d2t don't belong together",
            )

    @cached_property
    def _embedding(self) -> Tensor:
        return self._target.ends.embedding.float().cpu()

    @cached_property
    def _features(self) -> list[Tensor]:
        """Each answer's hidden states after every layer, [n - 2, layers, Ht]: the last two have nothing to predict."""
        config = self._target.config
        every: tuple[int, ...] = tuple(range(config.num_layers))
        decoder = TorchDecoder(replace(config, chosen_layers=every), self._target.weights)  # type: ignore[arg-type]
        return [_hidden_states(decoder, answer, len(every)) for answer in self.answers]


def _most_hits(pairs: list[tuple[Hypothesis, float]]) -> list[tuple[Hypothesis, float]]:
    """The pairs with the most hits, in their order: as many as are confirmed, and those that equal the last of them."""
    enough = sorted((share for _, share in pairs), reverse=True)[:_CONFIRMED]
    return [pair for pair in pairs if pair[1] >= enough[-1]]


def _better(hits: float, than: float, least: float) -> bool:
    return hits > than + _CLEARLY and hits > least * than


def _batch(answers: Sequence[Completion]) -> tuple[ForwardBatch, Tensor]:
    """The head's rows over whole answers, and the tokens that it should propose at the answered ones."""
    rows = [(a.prompt_token_ids + a.token_ids)[1:-1] for a in answers]
    lengths = [len(ids) for ids in rows]
    pages = [-(-length // _PAGE) for length in lengths]
    table = torch.zeros(len(rows), max(pages), dtype=torch.int32)
    for row, (end, count) in enumerate(zip(accumulate(pages), pages, strict=True)):
        table[row, :count] = torch.arange(end - count, end)
    starts = [0, *accumulate(lengths)]
    first = [start + len(a.prompt_token_ids) - 1 for start, a in zip(starts, answers, strict=False)]
    wanted = [torch.arange(begin, end) for begin, end in zip(first, starts[1:], strict=True)]
    zeros = torch.zeros(len(rows), dtype=torch.int32)
    batch = ForwardBatch(
        token_ids=torch.tensor([i for ids in rows for i in ids], dtype=torch.int32),
        positions=torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths]),
        row_start=torch.tensor(starts, dtype=torch.int32),
        prefix_length=zeros,
        window_offset=zeros,
        page_table=table,
        logit_rows=torch.cat(wanted).int(),
    )
    return batch, torch.tensor([i for a in answers for i in a.token_ids[1:]])


def _hidden_states(decoder: TorchDecoder, answer: Completion, layers: int) -> Tensor:
    batch = one_sequence((answer.prompt_token_ids + answer.token_ids)[:-2], decoder.page_size, decoder.device)
    kv = decoder.allocate_kv(batch.page_table.numel())
    features = decoder.forward(batch, kv, logits="none", features=True).features
    assert features is not None  # requested
    return features.cpu().unflatten(1, (layers, -1))
