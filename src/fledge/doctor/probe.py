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

from fledge.doctor.findings import Defect
from fledge.doctor.hypotheses import Hypothesis, Trial, hypotheses, other_layers
from fledge.draft.runner import TorchHeadRunner
from fledge.engine import Completion
from fledge.heads import Head
from fledge.target import Target, TorchDecoder
from fledge.target.batch import ForwardBatch, one_sequence

_CLEARLY = 0.05  # more hits than this, and a fifth more, make a suspicion a finding
# So do, for a mistake undone, more hits at all and log-probabilities of the target's tokens that rise in a paired test.
# Of the released head, which is sound, no hypothesis raises them by more than 0.001.
_SLIGHTLY, _NATS, _ERRORS = 0.01, 0.04, 3.5  # hits; nats a token, and how many standard errors that is
_CLEARLY_IF_LOW = 1.1  # instead of a fifth, of a head that is known to accept too little
_LISTED = 256  # proposals whose log-probabilities are looked at
_TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
_SCREENED = 128  # rows on which every hypothesis is tried; the most promising are tried on all
_CONFIRMED = 4  # hypotheses tried on all rows, of the specific and of the general ones each
_TIE = 0.01  # minimum improvement in hit rate to prefer a later hypothesis
_FAULTS = 3  # found one after the other, each with the earlier ones undone
_RELATED = 0.3  # cosine of a draft row with its own target row: the lm_head stems from the target's
_ROWS = 1024  # draft rows compared with the target's at most
_MISPLACED = 0.02  # share of these; the released head has none
_PAGE = 16  # tokens per KV page


class Score(NamedTuple):
    """Quality of the head's predictions, over all answers."""

    hits: float  # share of rows whose first proposal is the target's token; tokens outside its vocabulary are misses
    largest: float  # largest magnitude of features, of fc's output, and of the head's own state
    log_probs: Tensor  # [M], of the target's tokens, at the temperature that suits the head best


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

    def findings(self, head: Head, score: Score, *, expected: float = 0.0) -> Iterator[Defect]:
        """The faults that, when undone, make the head clearly better. `expected`: the least hits of a sound one."""
        self._begins("mistakes are undone")
        misplaced = list(self._rows(head))
        yield from misplaced
        trial = self._trial(head, None)
        for number in range(_FAULTS):
            if number and 0 < expected <= score.hits:
                break
            candidates = hypotheses(trial, self._target)
            if misplaced:  # lm_head's order is named already
                candidates = (one for one in candidates if one.fault not in ("lm-head", "vocabulary-order"))
            low = score.hits < expected
            least = _CLEARLY_IF_LOW if low else 1.2
            found = self._best(trial, score, candidates, least)
            if low and (found is None or found[1].hits < expected):  # that isn't it, or not all of it
                others = self._best(trial, score, other_layers(trial, self._target), least)
                found = max(filter(None, (found, others)), key=lambda pair: pair[1].hits, default=None)
            if found is None:
                break
            hypothesis, better = found
            yield Defect(
                hypothesis.fault,
                f"with {hypothesis.undone} {better.hits:.0%} of first proposals are right instead of {score.hits:.0%}",
                hypothesis.remedy,
                certain=better.hits >= expected,  # else something else is wrong, too
            )
            if hypothesis.general:
                break
            trial, score = hypothesis.undo(trial), better

    def _best(
        self, trial: Trial, score: Score, candidates: Iterable[Hypothesis], least: float
    ) -> tuple[Hypothesis, Score] | None:
        """The hypothesis with the most hits, if they are `least` times as many, with its score; a general one has to be
        clearly better than all specific ones. Else the one that surely makes the target's tokens more probable."""
        screened = self._score(trial, self._screened)
        # General or not, in the order of the list.
        promising: dict[bool, list[tuple[Hypothesis, float]]] = {False: [], True: []}
        likelier: list[tuple[Hypothesis, float]] = []
        for one in candidates:
            tried = self._score(one.undo(trial), self._screened)
            if _more_hits(tried, screened, least):
                promising[one.general] = _highest([*promising[one.general], (one, tried.hits)])
            if not one.general and not one.scales and (gain := _gain(tried, screened, 1)) > _NATS / 2:
                likelier = _highest([*likelier, (one, gain)])
        best: tuple[Hypothesis, Score] | None = None
        for general, those in promising.items():
            for one, _ in those:
                tried = self._score(one.undo(trial), len(self.answers))
                ahead = _CLEARLY if general and best is not None and not best[0].general else _TIE
                if best is None or tried.hits > best[1].hits + ahead:
                    best = one, tried
        if best is not None and _more_hits(best[1], score, least):
            return best
        sure = [(one, self._score(one.undo(trial), len(self.answers))) for one, _ in likelier]
        sure = [pair for pair in sure if _surely_better(pair[1], score)]
        return max(sure, key=lambda pair: _gain(pair[1], score, _ERRORS), default=None)

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
        listed = min(_LISTED, head.config.draft_vocab_size)
        out = runner.forward(batch, kv, features=features, hidden=None, k=listed)
        entry = F.linear(features, head.weights.fc) if head.weights.fc_norms is None else features
        largest = max(float(t.abs().max()) for t in (features, entry, out.hidden))
        found = out.token_ids == expected[:, None]  # [M, k]
        return Score(float(found[:, 0].float().mean()), largest, _log_probs(out.log_probs, found))

    def _rows(self, head: Head) -> Iterator[Defect]:
        """Check that rows of the head's lm_head don't resemble the target's rows of other tokens."""
        if head.config.hidden_size != head.config.target_hidden_size:
            return
        count, ids = head.config.draft_vocab_size, head.vocabulary.token_ids
        sample = torch.linspace(0, count - 1, min(_ROWS, count)).long()
        mine = F.normalize(head.weights.lm_head[sample].float(), dim=-1)
        theirs = F.normalize(self._target.ends.lm_head[ids].float().cpu(), dim=-1)
        cosines = mine @ theirs.T  # [rows, Vd]
        own, best = cosines.gather(1, sample[:, None])[:, 0], cosines.max(dim=1).values
        chance = math.sqrt(2 * math.log(count) / head.config.hidden_size)  # the best of unrelated rows
        misplaced = float(((best > max(_RELATED, 1.5 * chance)) & (own < best / 2)).float().mean())
        if misplaced > _MISPLACED:
            yield Defect(
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


def _highest(pairs: list[tuple[Hypothesis, float]]) -> list[tuple[Hypothesis, float]]:
    """The pairs with the highest numbers, in their order: as many as are confirmed, and those that equal the last of
    them."""
    enough = sorted((number for _, number in pairs), reverse=True)[:_CONFIRMED]
    return [pair for pair in pairs if pair[1] >= enough[-1]]


def _more_hits(score: Score, than: Score, least: float) -> bool:
    return score.hits > than.hits + _CLEARLY and score.hits > least * than.hits


def _surely_better(score: Score, than: Score) -> bool:
    """True if the hit rate rises at all and log-probabilities rise significantly."""
    return score.hits > than.hits + _SLIGHTLY and _gain(score, than, _ERRORS) > _NATS


def _log_probs(listed: Tensor, found: Tensor) -> Tensor:
    """[M], of the target's token in each row [M, k]; where it isn't listed, of the last one. A mistake shows in their
    order, not in how sure the head is: a sound head may be too sure, and whatever dampens it would seem to help."""
    every = []
    for temperature in _TEMPERATURES:
        log_probs = (listed / temperature).log_softmax(dim=1)
        every.append((log_probs * found).sum(1).where(found.any(1), log_probs[:, -1]))
    return max(every, key=lambda log_probs: float(log_probs.mean()))


def _gain(score: Score, than: Score, errors: float) -> float:
    """By how much the log-probabilities rise, in nats a token; 0 if by less than so many standard errors."""
    gain = score.log_probs - than.log_probs
    mean, error = float(gain.mean()), float(gain.std()) / math.sqrt(len(gain))
    return mean if mean > errors * error else 0.0


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
