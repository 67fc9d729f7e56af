"""The `train` stage: a draft head from a feature store.

    features -> draft vocabulary, head from the target -> [ batch -> unroll -> loss -> update ] * steps -> head folder

The run is a function of its inputs, options and seed: killed at any moment and restarted, it resumes from the last
checkpoint and ends with the same head.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from fledge.base.ahead import read_ahead
from fledge.base.child import on_sigterm
from fledge.base.errors import DataError
from fledge.base.fingerprint import Fingerprint, make_fingerprint
from fledge.base.storage import Manifest, join, read_bytes, sha256
from fledge.data.options import Progress, silent
from fledge.features import FeatureStore, OnlineFeatures, SampleInfo
from fledge.heads import Head
from fledge.heads.checkpoint import CONFIG_NAME, weight_urls
from fledge.target import Target
from fledge.train.acceptance import Acceptance, Tally
from fledge.train.batches import TrainBatch, epoch_batches, heldout_batches, random_subset
from fledge.train.budget import seconds_per_token, steps_within
from fledge.train.candidates import as_asked, asked_estimates
from fledge.train.checkpoint import Checkpoint, CheckpointWriter, seconds_between
from fledge.train.curves import Tracker, write_curves
from fledge.train.evaluation import measured_batches
from fledge.train.feed import FeatureSource, read_batch
from fledge.train.learner import BatchMeasures, Learner
from fledge.train.optimizer import Optimizer
from fledge.train.options import TrainOptions
from fledge.train.parallel import Ranks
from fledge.train.refusals import refuse_unusable_loss
from fledge.train.start import initial_head
from fledge.train.workspace import freed_memory_is_kept, return_unused_memory

logger = logging.getLogger("fledge")

FORMAT = 1
_FEWEST_EPOCHS = 0.25  # fewer left by `train.minutes` cause a warning
_TIDY_STEPS = 20  # between returns of free memory; the step after each faults its memory in again


@dataclass(frozen=True)
class TrainSummary:
    """The result of a training run."""

    steps: int
    conversations: int
    tokens: int  # in the training conversations, each counted once
    supervised_tokens: int
    draft_vocab_size: int
    coverage: float  # share of generated tokens in the draft vocabulary
    tau: float | None  # on held-out conversations; None without any
    acceptance: list[float]  # share of rounds that accept at least 1, 2, ... tokens
    seconds: float


def train(
    target: Target,
    features_url: str,
    options: TrainOptions,
    head_url: str,
    train_url: str,
    progress: Progress = silent,
    online: OnlineFeatures | None = None,
) -> TrainSummary:
    """Train a head into `head_url`, with checkpoint and metrics in `train_url`; resume what an earlier call left.

    Features come from the store at `features_url`; with `online`, only the held-out ones do. Under torchrun all
    processes call this. SIGTERM saves a checkpoint and ends the process with status 143.
    """
    ranks = Ranks.from_environment(target.device)
    store = FeatureStore(features_url) if online is None or Manifest.load(features_url).shards else None
    if store is not None and store.hidden_size != target.config.hidden_size:
        raise DataError(
            f"{features_url} holds hidden states of size {store.hidden_size}, but {target.name} has "
            f"{target.config.hidden_size}; run `fledge features` with this target"
        )
    source: FeatureSource | None = online or store
    assert source is not None
    refuse_unusable_loss(target, options)
    start, coverage = initial_head(target, source, options)
    head, estimates = start.scoring_all(), asked_estimates(start.config, options)
    if ranks.leads:  # a run that can't start must not claim its folder
        train_fingerprint(target, features_url, options, online.url if online else None).claim(train_url)
    trainer = Trainer(target, source, store, head, options, train_url, ranks)
    trainer.run(progress if ranks.leads else silent)
    facts = trainer.facts() | {"coverage": round(coverage, 6)}
    metadata, weights = replace(head.metadata, training=facts), trainer.weights()
    if ranks.leads:
        trained = Head(head.config, weights, metadata)
        as_asked(trained, estimates, target, source, options).save(head_url)
    ranks.wait()
    return TrainSummary(
        steps=trainer.total,
        conversations=facts["conversations"],
        tokens=facts["tokens"],
        supervised_tokens=facts["supervised_tokens"],
        draft_vocab_size=head.config.draft_vocab_size,
        coverage=coverage,
        tau=facts["tau"],
        acceptance=facts["acceptance"],
        seconds=trainer.seconds,
    )


def train_fingerprint(
    target: Target, features_url: str, options: TrainOptions, conversations_url: str | None = None
) -> Fingerprint:
    """The head's inputs; not how features are computed, the number of processes, or when they log or save."""
    folders = [features_url] + ([] if conversations_url is None else [conversations_url])
    shards = "".join(shard.sha256 for folder in folders for shard in Manifest.load(folder).shards)
    started = None
    if options.init_head is not None:
        files = (join(options.init_head, CONFIG_NAME), *weight_urls(options.init_head))
        started = sha256(b"".join(read_bytes(file) for file in files))
    chosen = target.config.chosen_layers
    unneeded = {"log_every", "checkpoint_seconds", "init_head", "wandb_project", "parallel"}
    newer = ("candidates", "candidate_rank", "candidate_steps", "window", "window_keeps_first")
    fields = TrainOptions.model_fields  # as they were before these existed, so that older runs go on
    unneeded |= {name for name in newer if getattr(options, name) == fields[name].default}
    return make_fingerprint(
        {
            "stage": "train",
            "format": FORMAT,
            "target": target.revision,
            **({"feature_layers": chosen} if chosen else {}),
            "train": options.model_dump(mode="json", exclude=unneeded)
            | {"draft_vocab_size": options.new_vocab_size},
            **({"vocabulary": "replaced"} if started and options.draft_vocab_size is not None else {}),
            "init_head": started,
            "features": sha256(shards.encode()),
        }
    )


class Trainer:
    """The training loop and its state."""

    def __init__(
        self,
        target: Target,
        source: FeatureSource,
        heldout: FeatureStore | None,
        head: Head,
        options: TrainOptions,
        train_url: str,
        ranks: Ranks,
    ) -> None:
        self._source, self._heldout_store, self._ranks = source, heldout, ranks
        self._options = options
        self._url = train_url
        dtype = getattr(torch, options.dtype)
        self._learner = Learner(head, target.ends, dtype, target.device, options.own_loss)
        self._training = random_subset(source.split("train"), options.response_tokens, options.seed)
        self._schedule = _schedule(self._training, options)
        measured = options.batch_tokens, options.evaluate_tokens
        self._heldout = heldout_batches(heldout, *measured) if heldout else []
        if not self._heldout and ranks.leads:
            kept = ", the last weights are kept" if options.keep == "best" else ""
            logger.warning(
                "no held-out conversations: tau isn't measured%s, and `fledge evaluate` will fail", kept
            )
        self.total = self._planned = len(self._schedule)
        self._learner.unrolled.weights.distribute(ranks, options.parallel)
        self._optimizer = Optimizer(self._learner.unrolled.weights, options, self.total)
        self._step_weights = options.step_weights
        self._metrics: list[dict[str, Any]] = []
        self._tracker = Tracker(options, train_url, leads=ranks.leads)
        self._writer = CheckpointWriter()
        self._save_every = options.checkpoint_seconds or seconds_between(self._optimizer.state_bytes)
        self._drawn = 0  # rows in the TensorBoard curves
        self._step = 0
        self.seconds = 0.0

    def run(self, progress: Progress) -> None:
        """Train from the last checkpoint, if there is one, to the end."""
        with closing(self._writer):  # a checkpoint being written is completed, after an error or Ctrl-C, too
            self._train(progress)
        self._tracker.close()

    def _train(self, progress: Progress) -> None:
        resumed = self._resume()
        done = self._schedule[: self._step]
        clock = _Clock(self.seconds, sum(info.tokens for infos in done for info in infos))
        saved = time.monotonic()
        if self._options.minutes is not None and not resumed:
            self._fit_into(60 * self._options.minutes)
            self._save(clock)  # fix the number of steps from now on
        if self._step == 0:
            self._log(None, 0.0, 0.0, clock, progress)
        stop = threading.Event()  # set by SIGTERM: save, then end
        with freed_memory_is_kept(), on_sigterm(stop.set):
            ahead, threads = self._source.ahead, self._source.readers
            for batch in read_ahead(range(self._step, self.total), self._read_step, ahead, threads):
                number, every = self._step + 1, self._options.log_every
                logs = number % every == 0 or self._measures_tau_at(number)
                measures = self._learner.learn(batch, self._step_weights, measure=logs, ranks=self._ranks)
                norm = self._optimizer.update(self._step)
                clock.add(sum(info.tokens for info in self._schedule[self._step]))
                self._step += 1
                if self._step % _TIDY_STEPS == 0:
                    return_unused_memory()
                if logs:
                    self._log(measures, self._optimizer.learning_rate(self._step - 1), norm, clock, progress)
                else:
                    progress(self._step, self.total, clock.note())
                due = self._ranks.any(time.monotonic() - saved >= self._save_every)
                stopping = self._ranks.any(stop.is_set())
                if due or stopping or self._step == self.total:
                    self._save(clock)
                    saved = time.monotonic()
                if stopping:
                    self._writer.wait()
                    self._ranks.wait()
                    raise SystemExit(143)
        self.seconds = clock.seconds()

    def facts(self) -> dict[str, Any]:
        """The training section of the head's metadata, independent of interruptions."""
        kept = self._kept()
        return {
            "steps": self.total,
            "epochs": round(self._epochs(self.total), 4),
            "ttt_steps": self._options.ttt_steps,
            "conversations": len(self._training),
            "tokens": sum(info.tokens for info in self._training),
            "supervised_tokens": sum(info.supervised for info in self._training),
            "tau": kept["tau"] if kept else None,
            "acceptance": kept["acceptance"] if kept else [],
        } | ({"kept_step": kept["step"]} if kept and self._options.keep == "best" else {})

    def weights(self) -> Any:
        """The finished head's weights. All processes call this."""
        best = self._optimizer.best if self._kept() else None  # without a measurement there is none
        return self._learner.trained_head(best)

    def _kept(self) -> dict[str, Any] | None:
        """The measurement of the weights to keep, the first of several that are equally good."""
        measured = [row for row in self._metrics if row["tau"] is not None]
        if self._options.keep == "last":
            measured = measured[-1:]
        return max(measured, key=lambda row: row["tau"], default=None)

    def _epochs(self, step: int) -> float:
        """Passes over the training conversations after `step` steps."""
        return step / self._planned * self._options.epochs

    def _fit_into(self, budget: float) -> None:
        """Shorten the run to the steps that fit into `budget` seconds on this machine, calibration included."""
        start = time.perf_counter()
        with self._optimizer.undone(), freed_memory_is_kept():
            each = seconds_per_token(self._schedule, self._try_out, budget, self._ranks.any)
        measuring = 0.0
        if self._heldout:
            before = time.perf_counter()
            self._measure_tau()
            measuring = time.perf_counter() - before
        remaining = budget - (time.perf_counter() - start) - measuring  # of step 0
        steps = steps_within(self._schedule, each, measuring, self._options.evaluate_every, remaining)
        self.total = min(self._ranks.gather(steps))
        self._optimizer.total_steps = self.total
        if self.total < self._planned:
            share = f"{self.total} of {self._planned} steps ({self._epochs(self.total):.2f} epochs)"
            fits = f"{share} fit into {budget / 60:g} minutes"
            if self._epochs(self.total) < _FEWEST_EPOCHS:
                advice = "raise train.minutes, or train while the machine is idle"
                logger.warning("%s, too few for a useful head: %s", fits, advice)
            else:
                logger.info("%s", fits)

    def _try_out(self, infos: Sequence[SampleInfo]) -> None:
        """One step, to be timed and undone."""
        self._learner.learn(self._read(infos), self._step_weights, measure=False, ranks=self._ranks)
        self._optimizer.update(0)

    def _read_step(self, step: int) -> TrainBatch | None:
        return self._read(self._schedule[step])

    def _read(self, infos: Sequence[SampleInfo]) -> TrainBatch | None:
        """This process' share of a batch."""
        learner = self._learner
        return read_batch(self._source, self._ranks.share(infos), learner.dtype, learner.device)

    def _log(
        self, measures: BatchMeasures | None, rate: float, norm: float, clock: _Clock, progress: Progress
    ) -> None:
        """Append one line of metrics, with tau when due."""
        measures_tau = self._heldout and self._measures_tau_at(self._step)
        acceptance = self._measure_tau() if measures_tau else None
        row = {
            "step": self._step,
            "epoch": round(self._epochs(self._step), 4),
            "loss": measures.loss if measures else None,
            "loss_by_step": measures.losses if measures else None,
            "accuracy": measures.accuracy if measures else None,
            "overlap": measures.overlap if measures else None,
            "tau": round(acceptance.tau, 4) if acceptance else None,
            "acceptance": [round(share, 4) for share in acceptance.by_depth] if acceptance else None,
            "lr": rate,
            "gradient_norm": norm,
            "tokens": clock.tokens,
            "tokens_per_second": round(clock.rate(), 1),
            "seconds": round(clock.seconds(), 2),
        }
        self._metrics.append(row)
        if self._options.keep == "best" and self._kept() is row:
            self._optimizer.keep()
        self._tracker.log(row)
        note = clock.note() + (f", loss {measures.loss:.3f}" if measures else "")
        if acceptance:
            depths = " ".join(f"{share:.2f}" for share in acceptance.by_depth)
            note += f", tau {acceptance.tau:.3f} ({depths})"
            logger.info("step %d/%d: %s", self._step, self.total, note)
        progress(self._step, self.total, note)

    def _measures_tau_at(self, step: int) -> bool:
        return step % self._options.evaluate_every == 0 or step == self.total

    def _measure_tau(self) -> Acceptance:
        """Chain tau on held-out conversations, with the current weights."""
        depth = self._options.ttt_steps
        assert self._heldout_store is not None
        mine = self._heldout[self._ranks.rank :: self._ranks.size]
        tally, together = Tally(depth), Tally(depth)
        for _, rounds in measured_batches(self._learner, self._heldout_store, mine, depth):
            tally.add(rounds)
        for part in self._ranks.gather(tally):
            together.merge(part)
        return together.acceptance()

    def _save(self, clock: _Clock) -> None:
        """Save a checkpoint. All processes call this; the leader writes, in the background."""
        state = self._optimizer.state()
        if not self._ranks.leads:
            return
        if len(self._metrics) > self._drawn:
            write_curves(self._url, self._metrics, time.time() - clock.seconds())
            self._drawn = len(self._metrics)
        checkpoint = Checkpoint(self._step, self.total, clock.seconds(), list(self._metrics), state)
        self._writer.write(checkpoint, self._url)

    def _resume(self) -> bool:
        checkpoint = Checkpoint.load(self._url)
        if checkpoint is None:
            return False
        if self._ranks.leads:
            checkpoint.write_metrics(self._url)  # they may have been lost since
        self._optimizer.load_state(checkpoint.tensors)
        self._step, self.seconds = checkpoint.step, checkpoint.seconds
        self.total = self._optimizer.total_steps = checkpoint.total
        self._metrics = [row for row in checkpoint.metrics if row["step"] <= checkpoint.step]
        logger.info("training resumes at step %d of %d", self._step, self.total)
        return True


class _Clock:
    """Tokens and seconds of training over all parts of an interrupted run; the rate is that of this part."""

    def __init__(self, seconds: float, tokens: int) -> None:
        self.tokens = self._tokens_before = tokens
        self._before = seconds
        self._start = time.perf_counter()

    def add(self, tokens: int) -> None:
        self.tokens += tokens

    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._start

    def rate(self) -> float:
        return (self.tokens - self._tokens_before) / max(1e-9, time.perf_counter() - self._start)

    def note(self) -> str:
        return f"{self.rate():,.0f} tokens/s"


def _schedule(infos: list[SampleInfo], options: TrainOptions) -> list[list[SampleInfo]]:
    """All batches of the run in order; the last epoch may be partial."""
    batches: list[list[SampleInfo]] = []
    for epoch in range(math.ceil(options.epochs)):
        epoch_part = epoch_batches(infos, options.batch_tokens, options.seed, epoch)
        share = min(1.0, options.epochs - epoch)
        batches += epoch_part[: math.ceil(share * len(epoch_part))]
    return batches
