"""Cost of a run, estimated before it starts: tokens, bytes on disk, and time from a calibration of a few seconds."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import NamedTuple

import torch

from fledge.base.console import clock, human_bytes, print_table, say
from fledge.base.memory import peak_memory
from fledge.base.storage import Manifest, local_path
from fledge.bench import estimate_seconds
from fledge.data import RespondOptions
from fledge.draft import DraftVocabulary, HeadConfig
from fledge.draft.description import weight_shapes
from fledge.engine import Engine, SamplingParams
from fledge.engine.memory import memory_for_kv
from fledge.features import FeatureSample, bytes_per_token
from fledge.heads import Head
from fledge.run.asked import Asked, asked_prompts
from fledge.run.folder import Run
from fledge.train.batches import make_batch
from fledge.train.learner import Learner
from fledge.train.start import random_head

# Typical of self-written prompts and their answers; used until the real ones are on disk.
_KEPT = 0.85  # share of attempts that pass the filters
_ATTEMPT_TOKENS = 80  # including those cut at prompts.max_tokens
_TEMPLATE_TOKENS = 40
_ANSWER_SHARE = 0.7  # of respond.max_new_tokens
_PARQUET_BYTES = 5  # per token of a prompt or a conversation
# Per weight: the head in bf16, a checkpoint with masters and two moments, and a copy while writing it
_CHECKPOINT_BYTES = 18
# Per weight: float32 masters, gradient and two moments; the calibration's head is still there
_TRAINING_BYTES = 16

_TRAIN_OVER_MEASURE = 3.0  # measuring tau has no backward pass

_DECODE_STEPS = 12
_DECODED_PROMPT = 16  # tokens
_SAMPLES, _SAMPLE_TOKENS = 8, 160  # of the timed prefill and training batch


class Expected(NamedTuple):
    """A stage's line in the estimate."""

    stage: str
    tokens: float
    bytes: float
    seconds: float | None  # None: unknown, as another process or machine does the work


def print_estimate(run: Run, pending: Collection[str], speeds: Calibration | None = None) -> None:
    """Print the estimate of the pending stages, and warn if the disk is too small."""
    speeds = speeds or Calibration(run)
    rows = estimate(run, pending, speeds)
    if not rows:
        return
    if "train" in pending:
        c = speeds.head_config
        say(
            f"head: MLP {c.intermediate_size:,} wide, {c.num_heads} heads of {c.head_dim}, {c.num_kv_heads} of keys"
        )
    size, seconds = sum(row.bytes for row in rows), sum(row.seconds or 0.0 for row in rows)
    cells = [_cells(row) for row in (*rows, Expected("together", 0, size, seconds))]
    print_table("Estimate", ["stage", "tokens", "disk", "time"], cells)
    if run.target.device.type == "cpu":
        say(f"memory: about {human_bytes(_memory(run, pending, speeds))}")
    path = local_path(run.folder)
    free = shutil.disk_usage(path).free if path is not None else None
    if free is not None and free < size:
        say(f"warning: {run.folder} has {human_bytes(free)} free; free some space or lower prompts.count")


def _memory(run: Run, pending: Collection[str], speeds: Calibration) -> int:
    """Bytes: what was taken while speeds were timed, with the target loaded, and what the largest stage adds."""
    stages = [0]
    if "respond" in pending and (respond := run.recipe.respond).server is None:
        tokens = respond.max_batch * min(respond.longest_request, run.target.config.max_position_embeddings)
        limit = memory_for_kv(run.target.device)
        stages.append(min(tokens * run.target.decoder.kv_bytes_per_token(), limit))
    if "train" in pending:
        stages.append(speeds.head_size * _TRAINING_BYTES)
    return peak_memory() + max(stages)


def estimate(run: Run, pending: Collection[str], speeds: Calibration | None = None) -> list[Expected]:
    """The cost of each pending stage. Sizes come from existing files, or else from typical lengths."""
    expect = _Expectations(
        run, speeds or Calibration(run), conversation_tokens(run, known="respond" not in pending)
    )
    stages = {
        "prompts": expect.prompts,
        "respond": expect.respond,
        "features": expect.features,
        "train": expect.train,
        "evaluate": expect.evaluate,
        "bench": expect.bench,
    }
    return [stage() for name, stage in stages.items() if name in pending]


def prompts_within(run: Run, seconds: float, speeds: Calibration) -> int:
    """The prompts, in tens, with which a new run takes so many seconds; 0 if nothing is left for them."""
    growing = ("prompts", "respond", "features")  # the other stages are limited by their options
    rows = estimate(run, (*growing, "train", "evaluate", "bench"), speeds)
    each = sum(row.seconds or 0.0 for row in rows if row.stage in growing) / run.recipe.prompts.count
    left = seconds - sum(row.seconds or 0.0 for row in rows if row.stage not in growing)
    each = max(each, 1e-9)  # nothing is known of the time that files and servers take
    return max(0, int(left / each / 10) * 10)


class _Expectations:
    """The expected cost of each stage; only what is needed is timed."""

    def __init__(self, run: Run, speeds: Calibration, tokens: float) -> None:
        """`tokens`: of all conversations."""
        self._run, self._recipe, self._speeds = run, run.recipe, speeds
        self._tokens, self._heldout = tokens, tokens * run.recipe.respond.heldout
        self._asked = asked_prompts(run)
        self._token_bytes = bytes_per_token(run.target.config.hidden_size, run.recipe.features.codec)

    def prompts(self) -> Expected:
        prompts = self._recipe.prompts
        size = self._asked.prompts * self._asked.tokens * _PARQUET_BYTES
        if not prompts.writes:
            return Expected("prompts", 0.0, size, 0.0)
        attempts = self._asked.own / _KEPT
        written = attempts * _ATTEMPT_TOKENS
        seconds = written / self._speeds.sampled + attempts * _TEMPLATE_TOKENS / self._speeds.prefill
        return Expected("prompts", written, size, seconds)

    def respond(self) -> Expected:
        count, respond = self._asked.prompts, self._recipe.respond
        answers, seconds = count * _answered(respond, self._asked), None
        if respond.server is None:
            prompt_tokens = count * (self._asked.tokens + _TEMPLATE_TOKENS * self._asked.turns)
            seconds = answers / self._speeds.greedy + prompt_tokens / self._speeds.prefill
        return Expected("respond", answers, self._tokens * _PARQUET_BYTES, seconds)

    def features(self) -> Expected:
        options = self._recipe.features
        stored = self._tokens if options.feed == "offline" else self._heldout
        seconds = stored / self._speeds.prefill if options.uses_decoder else None
        return Expected("features", stored, stored * self._token_bytes, seconds)

    def train(self) -> Expected:
        options, feed = self._recipe.train, self._recipe.features.feed
        drawn = (self._tokens - self._heldout) * self._drawn_share()
        trained = drawn * options.epochs
        pauses = trained / options.batch_tokens / options.evaluate_every  # pauses to measure tau
        measured = pauses * min(self._heldout, options.evaluate_tokens)
        seconds = (trained + measured / _TRAIN_OVER_MEASURE) / self._speeds.train
        # Tokens the target processes meanwhile to compute their features.
        online_tokens = {"offline": 0.0, "online": trained, "hybrid": min(trained, drawn)}[feed]
        if online_tokens and self._recipe.features.uses_decoder:
            seconds += online_tokens / self._speeds.prefill
        if options.minutes:
            seconds = min(seconds, 60 * options.minutes)
        stored = online_tokens * self._token_bytes if feed == "hybrid" else 0.0
        return Expected("train", trained, self._speeds.head_size * _CHECKPOINT_BYTES + stored, seconds)

    def evaluate(self) -> Expected:
        judged = min(self._heldout, self._recipe.evaluate.max_tokens)
        return Expected("evaluate", judged, 0.0, judged / _TRAIN_OVER_MEASURE / self._speeds.train)

    def bench(self) -> Expected:
        heads, options = len(self._run.head_urls), self._recipe.bench
        heldout = min(options.heldout_prompts, round(self._asked.prompts * self._recipe.respond.heldout))
        options = options.model_copy(update={"heldout_prompts": heldout})
        seconds = estimate_seconds(options, heads, self._speeds.plain_ms)
        return Expected("bench", 0.0, 0.0, seconds)

    def _drawn_share(self) -> float:
        """The share of the conversations that training uses, if train.response_tokens limits it."""
        limit, respond = self._recipe.train.response_tokens, self._recipe.respond
        if limit is None:
            return 1.0
        answered = _answered(respond, self._asked)
        answer_share = answered / (answered + self._asked.tokens + _TEMPLATE_TOKENS * self._asked.turns)
        return min(1.0, limit / max((self._tokens - self._heldout) * answer_share, 1.0))


def _answered(respond: RespondOptions, asked: Asked) -> float:
    """Response tokens of a typical conversation."""
    return _ANSWER_SHARE * respond.max_new_tokens * (asked.turns + respond.second_turn)


def conversation_tokens(run: Run, *, known: bool) -> float:
    """Tokens of all conversations: those on disk if `known` to be complete, or else from typical lengths."""
    if known and (stored := Manifest.load(run.url("conversations")).tokens):
        return stored
    asked = asked_prompts(run)
    given = asked.tokens + _TEMPLATE_TOKENS * asked.turns
    return asked.prompts * (_answered(run.recipe.respond, asked) + given)


class Calibration:
    """Speeds on this machine, each measured on first use."""

    def __init__(self, run: Run) -> None:
        self._run, self._recipe, self._target = run, run.recipe, run.target
        self._length = min(_SAMPLE_TOKENS, run.target.config.max_position_embeddings)

    @cached_property
    def greedy(self) -> float:
        """Tokens per second of the batches that the respond stage decodes."""
        batch = self._recipe.respond.max_batch
        return batch / self._step_seconds(batch, SamplingParams(temperature=0.0))

    @cached_property
    def sampled(self) -> float:
        """The same for prompts, which are sampled."""
        batch, options = self._recipe.respond.max_batch, self._recipe.prompts
        params = SamplingParams(temperature=options.temperature, top_p=options.top_p)
        return batch / self._step_seconds(batch, params)

    @cached_property
    def plain_ms(self) -> float:
        """Milliseconds per token at batch 1."""
        return 1e3 * self._step_seconds(1, SamplingParams(temperature=0.0))

    @cached_property
    def prefill(self) -> float:
        """Tokens per second of a prefill."""
        engine = Engine(self._target, max_batch=_SAMPLES, max_context=self._length, prefix_cache=False)
        prompts = [self._token_ids(self._length - 1)] * _SAMPLES
        return self._length * _SAMPLES / _timed(lambda: engine.generate(prompts, max_tokens=1))

    @cached_property
    def train(self) -> float:
        """Tokens per second of training, from one batch of random features."""
        options = self._recipe.train
        vocabulary = DraftVocabulary.from_counts(
            torch.zeros(self._target.config.vocab_size), self._draft_vocab_size
        )
        learner = Learner(
            random_head(self._target, vocabulary, sizes=options.head),
            self._target.ends,
            getattr(torch, options.dtype),
            self._target.device,
        )
        samples = [self._random_sample() for _ in range(_SAMPLES)]
        batch = make_batch(samples, learner.dtype).to(self._target.device)
        weights = [1 / options.ttt_steps] * options.ttt_steps
        learner.learn(batch, weights, measure=False)  # the first step allocates
        return batch.tokens / _timed(lambda: learner.learn(batch, weights, measure=False))

    @property
    def head_size(self) -> int:
        """Number of weights of the head to be trained."""
        return sum(math.prod(shape) for shape in weight_shapes(self.head_config).values())

    @cached_property
    def head_config(self) -> HeadConfig:
        """The shape of the head to be trained."""
        start = self._run.train_options.init_head  # `released` is a folder by now
        if start is not None:
            config = Head.load(start).config
            own = self._recipe.train.draft_vocab_size
            return config if own is None else replace(config, draft_vocab_size=self._draft_vocab_size)
        sizes = self._recipe.train.head
        return HeadConfig.for_target(self._target.config, self._draft_vocab_size, sizes=sizes)

    @property
    def _draft_vocab_size(self) -> int:
        return min(self._recipe.train.new_vocab_size, self._target.config.vocab_size)

    def _step_seconds(self, batch: int, params: SamplingParams) -> float:
        """Seconds of a decode step with `batch` requests, once all are running."""
        engine = Engine(self._target, max_batch=batch, max_context=self._length, prefix_cache=False)
        # Short, so that the first request doesn't end before the last has started.
        prompt = self._token_ids(min(_DECODED_PROMPT, self._length // 2))
        fixed = replace(params, max_tokens=self._length - len(prompt), ignore_eos=True)
        requests = [engine.submit(prompt, replace(fixed, seed=seed)) for seed in range(batch)]
        begun: set[int] = set()
        while len(begun) < batch:
            begun.update(result.request_id for result in engine.step())
        seconds = [_timed(engine.step) for _ in range(_DECODE_STEPS) if engine.busy]
        for request in requests:
            engine.cancel(request)
        return median(seconds)

    def _token_ids(self, length: int) -> list[int]:
        start = self._target.chat.user_turn_start()
        return (start * length)[:length]

    def _random_sample(self) -> FeatureSample:
        length, hidden = self._length, self._target.config.hidden_size
        ids = torch.tensor(self._token_ids(length), dtype=torch.int32)
        return FeatureSample(
            conversation_id="",
            category="",
            split="train",
            temperature=0.0,
            token_ids=ids,
            loss_mask=torch.ones(length, dtype=torch.uint8),
            argmax=ids,
            features=torch.randn(length, 3 * hidden).bfloat16(),
            hidden=torch.randn(length, hidden).bfloat16(),
        )


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return max(time.perf_counter() - begin, 1e-6)


def _cells(row: Expected) -> list[str]:
    tokens = f"{row.tokens:,.0f}" if row.tokens else ""
    time = "" if row.seconds is None else clock(row.seconds)
    return [row.stage, tokens, human_bytes(row.bytes) if row.bytes else "", time]
