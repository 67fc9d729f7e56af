"""Evidence from forwards: how often the head's first proposal is the target's own next token, as it is and with one
suspected fault undone. If undoing it makes the head clearly better, the head has that fault.

    answer of the target    a  b  c  d  e        head reads features and ids up to c
    head's proposals           b  x  d  e        hits: 3 of 4
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.doctor.findings import Finding
from fledge.draft.runner import TorchHeadRunner
from fledge.engine import Completion
from fledge.heads import Head
from fledge.target import Target, TorchDecoder
from fledge.target.batch import one_sequence

_CLEARLY = 0.05  # more hits than this, and a fifth more, make a suspicion a finding
_RELATED = 0.3  # cosine of a draft row with its own target row: the lm_head stems from the target's
_ROWS = 1024  # draft rows compared with the target's at most


class Score(NamedTuple):
    """How well the head predicts, over all answers."""

    hits: float  # share of rows whose first proposal is the target's token; tokens outside its vocabulary are misses
    largest: float  # largest magnitude of features, of fc's output, and of the head's own state


class Probe:
    """Scores a head, and the head with suspected faults undone, on a target's answers."""

    SCORES = 4  # at most: the head as it is, and with each of three suspected faults undone

    def __init__(
        self,
        target: Target,
        answers: Sequence[Completion],
        begins: Callable[[str], None] = lambda what: None,
    ) -> None:
        """`begins` is called before each score is computed."""
        self._target = target
        self._begins = begins
        self.answers = [a for a in answers if len(a.token_ids) > 1]
        self._features: dict[int, list[Tensor]] = {}

    def score(self, head: Head, shift: int = 0) -> Score:
        """The head's score. `shift`: with features of layers that many further up."""
        self._begins("the head proposes")
        # A recorded other target is a finding already, not an error here.
        head = Head(head.config, head.weights).running_with(self._target)
        embedding_own = head.weights.embedding
        embedding = (self._target.ends.embedding if embedding_own is None else embedding_own).float().cpu()
        runner = TorchHeadRunner(head.config, head.weights, embedding, page_size=16)
        hits, rows, largest = 0, 0, 0.0
        for answer, features in zip(self.answers, self._layer_features(shift), strict=True):
            ids = answer.prompt_token_ids + answer.token_ids
            count, first = len(ids) - 2, len(answer.prompt_token_ids) - 1
            batch = one_sequence(ids[1:-1], runner.page_size, torch.device("cpu"))
            kv = runner.allocate_kv(batch.page_table.numel())
            out = runner.forward(batch, kv, features=features[:count], hidden=None, k=1)
            hits += int((out.token_ids[first:, 0] == torch.tensor(ids[2:])[first:]).sum())
            rows += count - first
            entry = F.linear(features, head.weights.fc.float()) if head.weights.fc_norms is None else features
            largest = max(largest, *(float(t.abs().max()) for t in (features, entry, out.hidden)))
        return Score(hits / max(1, rows), largest)

    def findings(self, head: Head, score: Score) -> Iterator[Finding]:
        """The faults that, when undone, make the head clearly better."""
        better = self._better_than(score)
        gate, up = head.weights.gate_up.chunk(2)
        swapped = Head(head.config, replace(head.weights, gate_up=torch.cat((up, gate))), head.metadata)
        if better(gain := self.score(swapped).hits):
            yield Finding(
                "gate-up",
                f"with gate and up swapped {gain:.0%} of first proposals are right instead of {score.hits:.0%}",
                "export the head again with gate_proj and up_proj under their right names",
            )
        for shift in (-1, 1):
            if self._shift_fits(shift) and better(gain := self.score(head, shift).hits):
                way = "later" if shift > 0 else "earlier"
                yield Finding(
                    "layers",
                    f"with features one layer {way} {gain:.0%} of first proposals are right, not {score.hits:.0%}",
                    "train on the target's own feature layers, or export with the layers it was trained on",
                )
        yield from self._rows(head)

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
        if float(best) > _RELATED and float(matching) < float(best) / 2 and misplaced > 0.5:
            yield Finding(
                "vocabulary-order",
                f"{misplaced:.0%} of the rows of lm_head look like the target's rows of other tokens than d2t says",
                "export the head again from where it was trained: lm_head and d2t don't belong together",
            )

    def _better_than(self, score: Score) -> Callable[[float], bool]:
        return lambda hits: hits > score.hits + _CLEARLY and hits > 1.2 * score.hits

    def _shift_fits(self, shift: int) -> bool:
        layers = self._target.config.feature_layers
        return layers[0] + shift >= 0 and layers[-1] + shift < self._target.config.num_layers

    def _layer_features(self, shift: int) -> list[Tensor]:
        """Each answer's features, [n, 3 * Ht] float32."""
        if shift not in self._features:
            config = self._target.config
            shifted = config.with_feature_layers([layer + shift for layer in config.feature_layers])
            decoder = TorchDecoder(shifted, self._target.weights)
            self._features[shift] = [_features(decoder, a) for a in self.answers]
        return self._features[shift]


def _features(decoder: TorchDecoder, answer: Completion) -> Tensor:
    batch = one_sequence(answer.prompt_token_ids + answer.token_ids, decoder.page_size, decoder.device)
    kv = decoder.allocate_kv(batch.page_table.numel())
    features = decoder.forward(batch, kv, logits="none", features=True).features
    assert features is not None  # requested
    return features.float().cpu()
