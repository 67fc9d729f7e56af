"""The head in training: steps on what the ring has, and measurements against the head that serves.

    step        a random batch of the ring's conversations, through the learner and the optimiser of `fledge train`
    measure     the averaged weights and the serving head draft on the same held-out conversations: the difference of
                their taus with its 95 % interval, conversations resampled together

Learning has no end, so learning rates stay at their peaks, and the candidates are averages of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import NormalDist

import torch
from torch import Tensor

from fledge.draft import DraftVocabulary, HeadMetadata
from fledge.features import FeatureSample, SampleInfo
from fledge.features.extract import by_tokens, likeliest_next
from fledge.heads import Head
from fledge.learn.options import LearnOptions
from fledge.learn.ring import Ring
from fledge.target import Target
from fledge.train.acceptance import replay
from fledge.train.batches import even_subset, is_trainable, make_batch
from fledge.train.candidates import with_candidates
from fledge.train.compare import TauDifference, tau_difference
from fledge.train.evaluation import compute_dtype
from fledge.train.learner import Learner
from fledge.train.optimizer import Optimizer
from fledge.train.options import TrainOptions
from fledge.train.start import random_head

_HORIZON = 10**6  # steps of a schedule that never decays
_WARMUP = 30  # steps
_AGAIN = 0.3  # learning rates of a trained head, relative to a new one's
_COMMON = 3  # conversations in which a token has to occur for a draft vocabulary to take it because of them
_LIKELY = 0.1  # minimum share of an answer's tokens that are the target's most probable ones
_AT_ONCE = 256  # tokens whose activations are in memory
_ESTIMATED_FROM = 8_000  # tokens of conversations, for low-rank estimates of the lm_head
_FEWEST = 8  # conversations to start with


class Student:
    """A head that learns from a ring."""

    def __init__(
        self,
        target: Target,
        ring: Ring,
        options: LearnOptions,
        head: Head | None,
        *,
        metadata: HeadMetadata | None = None,
        turn_ends: Collection[int] | None = None,
    ) -> None:
        """`head`: what serves and is trained on, fitted to the target; None: a new one, once its tokens can be chosen.

        `metadata` and `turn_ends`: the target's, where its tokenizer is to stay unloaded.
        """
        self._metadata = metadata or HeadMetadata.of(target)
        self._turn_ends = target.chat.turn_end_ids if turn_ends is None else turn_ends
        self._target, self._ring, self._options = target, ring, options
        self._learner: Learner | None = None
        self._generator = torch.Generator().manual_seed(options.train.seed)
        # The serving head's tokens and rounds, by conversation.
        self._served: dict[int, tuple[float, float]] = {}
        self._serving: Tensor | None = None  # its masters; None: plain decode
        self._share = 1.0  # of the learning rates
        self.steps = 0
        if head is not None:
            self._begin(head, again=True)
            self._serving = self._masters.clone()

    @property
    def waits_for(self) -> str:
        """Missing input for a step: enough answers to begin with, or new ones; empty: none."""
        infos, options = self._ring.split("train"), self._options
        tokens = sum(map(_tokens, infos))
        if len(infos) < _FEWEST or tokens < options.start_tokens:
            return (
                f"{len(infos)} answers with {tokens:,} tokens are there, {_FEWEST} with {options.start_tokens:,} are "
                "needed to begin"
            )
        if sum(map(_tokens, self._ring.left())) < options.train.batch_tokens:
            return f"each answer has been used {options.passes:g} times, and new ones are needed"
        return ""

    def step(self) -> float | None:
        """One step; its loss, or None without samples. Raises a DataError for a gradient that isn't finite."""
        if self._learner is None:
            self._begin(self._new_head(), again=False)
        assert self._learner is not None
        options = self._options.train
        infos = [
            info for info in self._ring.draw(options.batch_tokens, self._generator) if is_trainable(info)
        ]
        tokens, losses = sum(map(_tokens, infos)), []
        for part in by_tokens(sorted(infos, key=_tokens), _AT_ONCE, _tokens):
            if samples := self._ring.read_many(part):
                weights = [weight * sum(map(_tokens, part)) / tokens for weight in options.step_weights]
                measures = self._learner.learn(
                    make_batch(samples, self._learner.dtype), weights, measure=True
                )
                losses += [measures.loss] if measures is not None else []
        if not losses:
            return None
        self._optimizer.update(self._since)
        # Early on the average follows the weights closely.
        decay = min(self._options.average, (self._since + 1) / (self._since + 10))
        self._average.lerp_(self._masters, 1 - decay)
        self._since += 1
        self.steps += 1
        return sum(losses)

    def measure(self) -> list[TauDifference]:
        """The candidate against what serves: in all, then by group of traffic; [] without held-out conversations."""
        learner = self._learner
        infos = [info for info in self._ring.split("heldout") if is_trainable(info)]
        if learner is None or not infos:
            return []
        weights = learner.unrolled.weights
        new = [info for info in infos if info.index not in self._served]
        if self._serving is not None:
            weights.compute.copy_(self._serving)
            self._served |= self._counts(new)
        weights.compute.copy_(self._average)
        candidate = self._counts(infos)
        weights.refresh()
        if self._serving is None:  # a token a round
            self._served = {index: (tokens, tokens) for index, (tokens, _) in candidate.items()}
        self._served = {i: self._served[i] for i in candidate if i in self._served}
        groups: dict[str, list[list[tuple[float, float]]]] = {}
        for info in infos:
            if (served := self._served.get(info.index)) is not None:
                for name in ("", info.category):
                    groups.setdefault(name, []).append([served, candidate[info.index]])
        return [
            tau_difference(name, torch.tensor(both, dtype=torch.float64).transpose(0, 1))
            for name, both in groups.items()
        ]

    def candidate(self, difference: TauDifference) -> Head:
        """The averaged weights as a head."""
        assert self._learner is not None
        weights = self._learner.trained_head(self._average)
        facts = {
            "by": "fledge serve --learn",
            "steps": self.steps,
            "tokens": self._ring.tokens_in,
            "tau": round(difference.tau[1], 4),
        }
        metadata = replace(self._metadata, training=facts)
        head = Head(self._learner.head.config, weights, metadata)
        if not (count := self._estimates.candidates):
            return head
        chosen = even_subset([i for i in self._ring.split("train") if is_trainable(i)], _ESTIMATED_FROM)
        samples = (self._ring.read_many(part) for part in by_tokens(chosen, _AT_ONCE, _tokens))
        batches = (make_batch(found, torch.float32) for found in samples if found)
        steps, rank = self._options.train.ttt_steps, self._estimates.candidate_rank
        return with_candidates(head, self._target.ends, batches, count=count, rank=rank, steps=steps)

    def accept(self) -> None:
        """The candidate serves from now on."""
        self._serving = self._average.clone()
        self._served = {}

    def go_back(self, head: Head) -> None:
        """Continue training from `head`, which serves again."""
        self._begin(head, again=True)
        self._serving, self._served = self._masters.clone(), {}

    def begin_again(self) -> None:
        """Forget all steps since the serving head, and make smaller ones from now on."""
        self._share *= 0.5
        if self._serving is None or self._learner is None:
            self._learner = None
            return
        self._masters.copy_(self._serving)
        weights = self._learner.unrolled.weights
        weights.grad.zero_()
        weights.refresh()
        self._optimize(self._train_options(again=True))

    @property
    def _masters(self) -> Tensor:
        assert self._learner is not None
        return self._learner.unrolled.weights.masters.shard

    def _begin(self, head: Head, *, again: bool) -> None:
        dtype = compute_dtype(self._target)
        options = self._train_options(again=again)
        self._estimates = head.config
        self._learner = Learner(
            head.scoring_all(), self._target.ends, dtype, self._target.device, options.own_loss
        )
        self._optimize(options)

    def _optimize(self, options: TrainOptions) -> None:
        """Start a new optimiser and a new average from the current weights."""
        assert self._learner is not None
        self._optimizer = Optimizer(self._learner.unrolled.weights, options, _HORIZON)
        self._average = self._masters.clone()
        self._since = 0  # steps of this optimiser

    def _train_options(self, *, again: bool) -> TrainOptions:
        train, share = self._options.train, self._share * (_AGAIN if again else 1.0)
        rates = {
            "warmup": _WARMUP / _HORIZON,
            "learning_rate": share * train.learning_rate,
            "muon_learning_rate": share * train.muon_learning_rate,
        }
        return train.model_copy(update=rates)

    def _new_head(self) -> Head:
        counts = vocabulary_counts(self._target, self._samples())
        return new_head(self._target, self._options, counts, self._turn_ends, self._metadata)

    def _samples(self) -> list[FeatureSample]:
        return self._ring.read_many(self._ring.split("train"))

    def _counts(self, infos: Sequence[SampleInfo]) -> dict[int, tuple[float, float]]:
        """Tokens and rounds of each conversation that is still there, with the present weights."""
        assert self._learner is not None
        outside, steps = ~self._learner.head.vocabulary.t2d, self._options.train.ttt_steps
        counts: dict[int, tuple[float, float]] = {}
        for group in by_tokens(sorted(infos, key=_tokens), 2 * _AT_ONCE, _tokens):
            samples = self._ring.read_many(group)
            if not samples:
                continue
            batch = make_batch(samples, self._learner.dtype)
            for one in replay(self._learner.hits(batch, steps), batch, outside):
                number = int(samples[one.sample].conversation_id)
                tokens, rounds = counts.get(number, (0.0, 0.0))
                counts[number] = tokens + one.emitted, rounds + 1
        return counts


def new_head(
    target: Target, options: LearnOptions, counts: Tensor, turn_ends: Collection[int], metadata: HeadMetadata
) -> Head:
    """The head that learning begins with, as `fledge train` makes it; `counts` [V] of the tokens choose its own."""
    train = options.train
    vocabulary = DraftVocabulary.from_counts(counts, train.new_vocab_size, turn_ends)
    head = random_head(
        target,
        vocabulary,
        keep_output=train.init == "lm_head",
        switches=train.switches,
        sizes=train.head,
        metadata=metadata,
    )
    return head.with_window(train.window, keeps_first=train.window_keeps_first)


def vocabulary_counts(target: Target, samples: Sequence[FeatureSample]) -> Tensor:
    """Count of each token, [V] int64; 0 for one of fewer than three conversations.

    A head is a file, and its draft vocabulary would otherwise say which rare tokens a single client sent. The rest
    is filled with the tokens of the lowest ids, in a BPE vocabulary the most frequent ones.
    """
    size = target.config.vocab_size
    counts, seen = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
    for sample in samples:
        own = torch.bincount(sample.token_ids.long(), minlength=size)
        counts += own
        seen += own > 0
    return counts * (seen >= _COMMON)


def with_argmax(sample: FeatureSample, lm_head: Tensor) -> FeatureSample:
    """A sampled conversation with the target's most probable tokens, from its hidden states."""
    if sample.temperature == 0:
        return sample
    argmax = likeliest_next(
        sample.loss_mask, sample.hidden, lambda rows: rows.to(lm_head.dtype) @ lm_head.t()
    )
    return replace(sample, argmax=argmax)


def is_likely(sample: FeatureSample) -> bool:
    """True if the target often picks the answer's tokens itself; random tokens can't be drafted."""
    rows = sample.loss_mask[1:].nonzero().flatten()
    return bool((sample.argmax[rows] == sample.token_ids[rows + 1]).float().mean() >= _LIKELY)


def surely_worse(groups: Sequence[TauDifference]) -> str | None:
    """A group of traffic that loses, with 95 % certainty for all of them together (Bonferroni); None: none does."""
    z = NormalDist().inv_cdf(1 - 0.025 / max(len(groups), 1))
    known = [one for one in groups if math.isfinite(one.low)]
    return next((g.name for g in known if (g.low + g.high) / 2 + z * (g.high - g.low) / (2 * 1.96) < 0), None)


def _tokens(info: SampleInfo) -> int:
    return info.tokens
