"""The serving loop: requests of token ids in, tokens out, one step at a time.

step():  schedule prefill -> prefill -> schedule decode -> choose a tree shape -> one round -> emit
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fledge.engine.build import EngineParts
from fledge.engine.params import SamplingParams
from fledge.engine.phases import PhaseClock, PhaseSeconds
from fledge.engine.planner import PlannedShape, depth_masses
from fledge.engine.prefill import PrefillChunk, prefill_head, prefill_target
from fledge.engine.request import Emitted, Request, StepResult, TreeTrace
from fledge.engine.round import Outcome, catch_up, lookup_round, plain_round, speculative_round
from fledge.engine.stops import StopWatch
from fledge.engine.trace import tree_traces
from fledge.errors import EngineError

Sink = Callable[[StepResult], None]


@dataclass(frozen=True)
class EngineStats:
    """What an engine has done so far."""

    rounds: int
    request_rounds: int  # rounds, counted once for every request in them
    round_tokens: int  # emitted by rounds, over all requests
    prompt_tokens: int  # prefilled, again after a preemption
    preemptions: int
    hit_tokens: int  # neither prefilled nor counted in prompt_tokens: the prefix cache had them
    evictions: int  # pages of the prefix cache given to others
    pages: int  # the KV pool's
    pages_in_use: int  # by requests
    pages_cached: int  # by no request, kept for the prefix cache
    drafts: int  # trees proposed, one per speculating request and round
    draft_tokens: int  # their nodes, roots left out
    accepted_by_depth: list[int]  # [d - 1]: trees whose accepted path reached depth d
    running: int  # requests being decoded or prefilled now
    waiting: int  # requests the engine has queued
    kv_usage: float  # share of the KV pool's pages in use
    phases: PhaseSeconds
    shapes: list[PlannedShape]  # the trees that were verified and what came of them, most used first

    @property
    def tau(self) -> float:
        """Tokens per round and request, bonus token included."""
        return self.round_tokens / self.request_rounds if self.request_rounds else 1.0


class EngineCore:
    """Everything about serving except text. One thread at a time is inside; others wait."""

    def __init__(self, parts: EngineParts, decode_text: Callable[[Sequence[int]], str]) -> None:
        self._models, self._batch = parts.models, parts.batch
        self._scheduler, self._planner, self._pool = parts.scheduler, parts.planner, parts.pool
        self._max_context = parts.max_context
        self._decode_text = decode_text
        self._requests: dict[int, Request] = {}
        self._ids = itertools.count()
        self._clock = PhaseClock()
        self._lock = threading.RLock()  # held by a step
        self._queue_lock = threading.RLock()  # held while the queue of waiting requests changes from outside
        self._rounds = self._request_rounds = self._round_tokens = self._prompt_tokens = 0
        self._drafts = self._draft_tokens = 0
        self._accepted_by_depth: list[int] = []

    @property
    def speculative(self) -> bool:
        """True with a draft head."""
        return self._models.head is not None

    @property
    def busy(self) -> bool:
        """True while some request isn't done."""
        return self._scheduler.busy

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        seed: int,
        stop_ids: frozenset[int],
        speculate: bool,
        sink: Sink | None,
        watch: StopWatch | None = None,
        trace: bool = False,
    ) -> int:
        """Queue a request; returns its id. `sink` gets each of its results from within the step that made it."""
        self._refuse_impossible(prompt_ids, params)
        with self._queue_lock:  # not the step's lock: a request may arrive while a round runs
            request = Request(
                id=next(self._ids),
                prompt_ids=list(prompt_ids),
                params=params,
                seed=seed,
                stop_ids=stop_ids,
                speculate=speculate and self._models.head is not None,
                sink=sink,
                watch=watch,
                trace=trace,
            )
            self._requests[request.id] = request
            self._scheduler.waiting.append(request)
        return request.id

    def cancel(self, request_id: int) -> None:
        """Drop a request at once and free all it holds; nothing happens if it is done already."""
        with self._lock, self._queue_lock:
            request = self._requests.pop(request_id, None)
            if request is not None:
                self._scheduler.remove(request)

    def reset(self) -> None:
        """Drop every request, whatever state a failed step left it in; all pages are free again."""
        with self._lock, self._queue_lock:
            self._requests.clear()
            self._scheduler.reset()

    def step(self, *, unless: Callable[[], bool] | None = None) -> list[StepResult]:
        """One prefill forward if prompts are waiting, then one round; what each request got.

        `unless` is asked once the lock is held: if it says yes, nothing is done.
        """
        with self._lock, torch.inference_mode():
            if unless is not None and unless():
                return []
            self._clock.start()
            results: list[StepResult] = []
            chunks = self._scheduler.schedule_prefill()
            if chunks:
                self._prefill(chunks, results)
            if self._scheduler.schedule_decode():
                self._decode(results)
            if not self._scheduler.busy:
                self._scheduler.check()
            self._clock.lap("host")
            return results

    def check(self) -> None:
        """Raise EngineError unless every page of the KV pool is accounted for."""
        with self._lock, self._queue_lock:
            self._scheduler.check()

    def stats(self) -> EngineStats:
        """Counters and times since the engine started."""
        return EngineStats(
            rounds=self._rounds,
            request_rounds=self._request_rounds,
            round_tokens=self._round_tokens,
            prompt_tokens=self._prompt_tokens,
            preemptions=self._scheduler.preemptions,
            hit_tokens=self._scheduler.hit_tokens,
            evictions=self._pool.evictions,
            pages=self._pool.pages - 1,
            pages_in_use=self._pool.pages - 1 - self._pool.free_pages,
            pages_cached=self._pool.idle_pages,
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_by_depth=list(self._accepted_by_depth),
            running=len(self._scheduler.prefilling) + len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_usage=1 - self._pool.free_pages / (self._pool.pages - 1),
            phases=self._clock.read(),
            shapes=self._planner.explain(),
        )

    def _prefill(self, chunks: list[PrefillChunk], results: list[StepResult]) -> None:
        for chunk in chunks:
            if chunk.start == chunk.request.prefix_tokens and not chunk.request.output_ids:
                chunk.request.phases_at_start = self._clock.read()
        # The head sees prompts only if it will be used.
        follow = any(chunk.request.speculate for chunk in chunks)
        self._clock.lap("host")
        done = prefill_target(self._models, chunks, features=follow)
        first = done.chosen.tolist() if done.chosen is not None else []
        self._clock.lap("prefill")
        finishing = [chunk.request for chunk in chunks if chunk.finishes]
        told = done.logprobs.read([[token] for token in first]) if done.logprobs else {}
        for number, (request, token) in enumerate(zip(finishing, first, strict=True)):
            self._deliver(request, request.emit([token], [0], told.get(number)), results)
        for chunk in chunks:
            chunk.request.prefilled = chunk.stop
            self._prompt_tokens += chunk.stop - chunk.start
        self._clock.lap("host")
        # Where drafting won't pay at once, the head isn't shown the prompts' ends; it can catch up later.
        company = len(self._scheduler.running) + len(finishing)
        behind = follow and len(finishing) == len(chunks) and not self._planner.pays(company)
        proposed = prefill_head(self._models, chunks, done) if follow and not behind else None
        for chunk in chunks:
            if chunk.request.pages:  # a sink may have cancelled it
                self._scheduler.offer_prefix(chunk, head=proposed is not None)
        joining = [number for number, c in enumerate(chunks) if c.finishes and c.request.id in self._requests]
        for number in joining:
            self._scheduler.start_running(chunks[number].request)
        if proposed is not None and joining:
            rows = torch.arange(
                self._batch.size - len(joining), self._batch.size, device=self._models.decoder.device
            )
            picked = torch.tensor(joining, device=rows.device)
            self._batch.set_first(rows, *(tensor.index_select(0, picked) for tensor in proposed))
        elif behind and done.features is not None:
            ends = done.rows.row_start.tolist()
            for number in joining:
                chunk, features = chunks[number], done.features[ends[number] : ends[number + 1]]
                following = chunk.request.context(chunk.start + 1, chunk.stop + 1)
                self._batch.start_behind(
                    chunk.request.row, torch.tensor(following, device=features.device), features
                )
        for request in finishing:
            if request.finish_reason:
                self._scheduler.remove(request)
        self._clock.lap("prefill")

    def _decode(self, results: list[StepResult]) -> None:
        running = list(self._scheduler.running)
        speculating = self._batch.speculating()[0]
        plan = self._planner.choose(len(running)) if speculating else None
        self._clock.lap("host")
        begun = time.perf_counter()
        if plan is not None and plan.drafts:
            catch_up(self._models, self._batch)
            self._clock.lap("extend")
        ready, clock = time.perf_counter(), self._clock.read()
        outcome = None
        if plan is not None:
            speculate = speculative_round if plan.drafts else lookup_round
            outcome = speculate(self._models, self._batch, plan, self._clock)
        made = plain_round(self._models, self._batch, self._clock) if outcome is None else outcome
        rows = made.emitted.tolist()  # the round's only value read on the host
        told = made.logprobs.read([row[1:] for row in rows]) if made.logprobs else {}
        traces = tree_traces(outcome, running) if outcome is not None else {}
        if speculating:
            self._learn(outcome, running, rows, time.perf_counter() - ready, ready - begun)
            if self._models.decoder.device.type == "cpu":  # elsewhere the clock sees launches, not work
                spent = self._clock.read().since(clock)
                verified = outcome.rows if outcome else len(running)
                shape, levels = (outcome.shape, len(outcome.levels)) if outcome else (None, 0)
                self._planner.time(len(running), shape, levels, verified, spent.draft, spent.verify)
        self._rounds += 1
        self._request_rounds += len(running)
        for number, (request, (count, *tokens)) in enumerate(zip(running, rows, strict=True)):
            if request.id not in self._requests:  # a sink cancelled it a moment ago
                continue
            emitted = request.emit(tokens[:count], _ORIGINS[count], told.get(number))
            request.count_round(emitted.origins, drafted=outcome is not None and request.speculate)
            self._round_tokens += len(emitted.token_ids)
            self._deliver(request, emitted, results, traces.get(request.id))
            if request.finish_reason:
                self._scheduler.remove(request)

    def _learn(
        self,
        outcome: Outcome | None,
        running: list[Request],
        rows: list[list[int]],
        seconds: float,
        before: float,
    ) -> None:
        """Tell the planner what a round of `seconds` brought; `before` it the head had to catch up."""
        if outcome is None:
            self._planner.observe(None, len(running), seconds, [])
            return
        tree, speculates = outcome.tree, self._batch.speculating()[1]
        depths, log_probs, levels = tree.depths, tree.log_probs, outcome.levels
        if speculates is not None:
            depths, log_probs = depths[speculates], log_probs[speculates]
            levels = [level[speculates] for level in levels]
        accepted = [row[0] - 1 for row, request in zip(rows, running, strict=True) if request.speculate]
        masses = depth_masses(depths, log_probs, outcome.shape.reach).tolist()
        self._planner.observe(
            outcome.shape, len(running), seconds, accepted, masses, levels, catch_up=before, rows=outcome.rows
        )
        if outcome.proposal is not None:
            self._planner.observe_lookup(outcome.proposal, rows)
        self._count_drafts(outcome, accepted)

    def _count_drafts(self, outcome: Outcome, depths: list[int]) -> None:
        """Record a round's trees; `depths` are the accepted depths of the requests that speculated."""
        shape = outcome.shape
        self._drafts += len(depths)
        self._draft_tokens += min(outcome.rows - self._batch.size, len(depths) * (shape.nodes - 1))
        self._accepted_by_depth += [0] * (shape.reach - len(self._accepted_by_depth))
        for depth in depths:
            for index in range(depth):
                self._accepted_by_depth[index] += 1

    def _deliver(
        self, request: Request, emitted: Emitted, results: list[StepResult], tree: TreeTrace | None = None
    ) -> None:
        completion = None
        if request.finish_reason:
            self._requests.pop(request.id, None)
            watch = request.watch
            text = self._decode_text(request.text_ids) if watch is None else watch.text
            completion = request.complete(text, self._clock.read())
        result = StepResult(
            request.id, emitted.token_ids, emitted.origins, completion, emitted.logprobs, emitted.text, tree
        )
        results.append(result)
        if request.sink is not None:
            request.sink(result)

    def _refuse_impossible(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        if not prompt_ids:
            raise EngineError("the prompt is empty; give it at least one token")
        vocabulary = self._models.decoder.config.vocab_size
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocabulary:
            raise EngineError(
                f"the prompt holds token ids outside 0..{vocabulary - 1}; use the target's own tokenizer"
            )
        longest = len(prompt_ids) + params.max_tokens
        if longest > self._max_context:
            raise EngineError(
                f"a prompt of {len(prompt_ids)} tokens and max_tokens {params.max_tokens} don't fit this engine's "
                f"{self._max_context} tokens of context; shorten the prompt, lower max_tokens, or raise the engine's "
                "max_context (or kv_tokens)"
            )


# Origins of `count` tokens of a round: accepted drafts by depth, then the bonus token.
_ORIGINS = [[*range(1, count), 0] for count in range(66)]
