"""The public engine: prompts in, answers out, whole or piece by piece."""

from __future__ import annotations

import asyncio
import inspect
import queue
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Unpack

import numpy as np
from torch import Tensor

from fledge.base.errors import EngineError
from fledge.draft.runner import HeadRunner
from fledge.engine.build import build_parts, refuse_unfit
from fledge.engine.checks import listed, switch, whole_numbers
from fledge.engine.core import EngineCore
from fledge.engine.detokenize import Detokenizer, decode_answer
from fledge.engine.logprobs import TokenLogprob
from fledge.engine.options import EngineOptions
from fledge.engine.params import SamplingOptions, SamplingParams, params_from, params_of_each
from fledge.engine.record import Tape
from fledge.engine.request import Completion, Request, Sink, StepResult
from fledge.engine.stats import EngineStats
from fledge.engine.stops import StopWatch
from fledge.engine.structured import Follower, Grammars
from fledge.heads import Head, head_runner
from fledge.target.target import Target

# A user's question, a conversation, or token ids used as they are.
Prompt = str | list[dict[str, str]] | list[int] | np.ndarray[Any, Any] | Tensor
_PROMPTS = "a prompt is a question, a list of messages or a list of token ids"


@dataclass(frozen=True)
class Piece:
    """Part of a streamed answer. The texts of all pieces together are the answer's text."""

    text: str  # may be empty while a character's last bytes are missing, or while it may become a stop string
    token_ids: list[int]
    origins: list[int]  # per token: 0 from the target itself, d an accepted draft of depth d
    completion: Completion | None  # set in the last piece
    logprobs: list[TokenLogprob] | None = None  # per token, if requested
    sources: list[str] = field(default_factory=list)  # per token: who proposed it, as in CompletionStats


class Engine:
    """Serves a target, faster with a draft head; `head=None` is plain decode.

    Its options are the fields of `EngineOptions`, given as one or as keywords.
    """

    def __init__(
        self,
        target: Target,
        head: Head | HeadRunner | None = None,
        options: EngineOptions | None = None,
        **keywords: Any,
    ) -> None:
        """Raises EngineError for options that are invalid, or that target and head don't allow."""
        if not isinstance(target, Target):
            raise EngineError(f"target is {target!r}; load it first: Target.load(...)")
        if not (head is None or hasattr(head, "allocate_kv") or isinstance(head, Head)):
            raise EngineError(f"head is {head!r}; load it first: Head.load(...)")
        options = EngineOptions(**keywords) if options is None else options.changed(**keywords)
        if options.draft_weights is not None and not isinstance(head, Head | None):
            raise EngineError("draft_weights is for a draft head that the engine loads; leave it out")
        options.check_head(given=head is not None)
        refuse_unfit(target, options)
        if isinstance(head, Head):
            target = head.target_it_reads(target)
        self.target = target
        runner = (
            head_runner(target, head, draft_weights=options.draft_weights) if isinstance(head, Head) else head
        )
        for one in (*options.proposers, options.own_drafter):
            if one is not None:
                one.start(target)
        parts = build_parts(target.decoder, runner, options)
        self.max_batch, self.recorder = options.max_batch, options.recorder
        self.head_name = head.name if isinstance(head, Head) else ""
        self.overlap = parts.overlap
        self.max_context, self.kv_bytes = parts.max_context, parts.kv_bytes
        self._core = EngineCore(parts, self._text_of)

    @property
    def speculative(self) -> bool:
        """True with a draft head, or another drafter."""
        return self._core.speculative

    def change_head(self, runner: HeadRunner) -> None:
        """Draft with another head of the same sizes from the next round on; running requests go on.

        Raises EngineError if the engine was made without a head, or with one of other sizes.
        """
        self._core.change_head(runner)

    @property
    def busy(self) -> bool:
        """True while some submitted request isn't done, or a sink's exception has not been re-raised by `step` yet."""
        return self._core.busy

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculate: bool = True,
        **options: Unpack[SamplingOptions],
    ) -> list[Completion]:
        """Answer all prompts, batched; the answers come in the prompts' order.

        `params` are one for all prompts, or one for each. `options` are the fields of `SamplingParams`, in place of
        `params`; a seed is used for each of the prompts.
        Raises EngineError, also if another thread drops one of the requests.
        """
        if isinstance(prompts, str | Mapping | Set) or not isinstance(prompts, Iterable):
            raise EngineError(f"generate takes a list of prompts, and {_PROMPTS}; put yours in brackets")
        prompts = list(prompts)
        each = params_of_each(params, options, len(prompts))
        done: dict[int, Completion] = {}

        def sink(result: StepResult) -> None:
            if result.completion is not None:
                done[result.request_id] = result.completion

        requests: list[int] = []
        try:
            for prompt, own in zip(prompts, each, strict=True):
                requests.append(self.submit(self.prompt_ids(prompt), own, speculate=speculate, sink=sink))
            while len(done) < len(requests):
                if not self._core.step():
                    first = next((request for request in requests if request not in done), requests[0])
                    self._refuse_dropped(first, partial(done.__contains__, first))
        finally:
            for request in requests:
                self.cancel(request)
        return [done[request] for request in requests]

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        speculate: bool = True,
        **options: Unpack[SamplingOptions],
    ) -> AsyncIterator[Piece]:
        """Answer one prompt piece by piece.

        Any number of streams may run at once; leaving one cancels its request.
        """
        params = params_from(params, options)
        answer = _Answer(self, prompt, params, speculate)
        try:
            while not answer.complete:
                for piece in answer.ready():
                    yield piece
                if not answer.complete:
                    await asyncio.to_thread(answer.advance)
        finally:
            if not answer.complete:  # cancelling waits for a step that runs
                await asyncio.shield(asyncio.to_thread(answer.cancel))

    def stream_sync(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        speculate: bool = True,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[Piece]:
        """`stream` for code without an event loop."""
        params = params_from(params, options)
        answer = _Answer(self, prompt, params, speculate)
        try:
            while not answer.complete:
                yield from answer.ready()
                if not answer.complete:
                    answer.advance()
        finally:
            answer.cancel()

    def submit(
        self,
        prompt_ids: Sequence[int] | np.ndarray[Any, Any] | Tensor,
        params: SamplingParams,
        *,
        speculate: bool = True,
        sink: Sink | None = None,
        trace: bool = False,
        record: str | None = None,
    ) -> int:
        """Queue a request of token ids and return its id; `step` serves it.

        `sink` is called with each of the request's results, from within the step that made it. It may submit and cancel
        requests, but not serve any. If it raises, its request alone is dropped, and the next call of `step` says so.
        `trace`: results carry the draft tree of their round.
        `record`: the recorder, if there is one, gets what this request leaves, as traffic of this group.
        """
        if not isinstance(params, SamplingParams):
            raise EngineError(f"params is {params!r}; use SamplingParams(...)")
        if isinstance(prompt_ids, Set):
            raise EngineError("the prompt is a set, which has no order; use a list of token ids")
        if sink is not None and not callable(sink):
            raise EngineError(f"sink is {sink!r}; use a function that takes a StepResult, or leave it out")
        self._refuse_unknown_tokens(params)
        prompt_ids = whole_numbers("the prompt", prompt_ids)
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self.target.chat.turn_end_ids
        seed = random.getrandbits(63) if params.seed is None else params.seed
        request = Request(
            list(prompt_ids),
            params,
            seed=seed,
            stop_ids=stop_ids,
            speculate=switch("speculate", speculate),
            sink=sink,
            watch=self._watch(params) if params.stop else None,
            trace=trace,
            grammar=self.follower(params),
            tape=None
            if record is None or self.recorder is None
            else Tape.of(record, len(prompt_ids), params),
        )
        return self._core.submit(request)

    def _watch(self, params: SamplingParams) -> StopWatch:
        skip = params.skip_special_tokens
        return StopWatch(self.target.tokenizer, params.stop, params.min_tokens, skip_special=skip)

    def _text_of(self, request: Request) -> str:
        skip = request.params.skip_special_tokens
        return decode_answer(self.target.tokenizer, request.text_ids, skip_special=skip)

    def follower(self, params: SamplingParams) -> Follower | None:
        """Follower that enforces the form `params` require; None: any form. Raises EngineError if it can't."""
        return (
            None if params.structured_outputs is None else self._grammars.follower(params.structured_outputs)
        )

    @cached_property
    def _grammars(self) -> Grammars:
        target = self.target
        return Grammars(target.tokenizer, target.decoder.config.vocab_size, target.chat.turn_end_ids)

    def step(self) -> list[StepResult]:
        """Serve the submitted requests for one round; what each of them got. Nothing to do: an empty list.

        Raises EngineError if a sink raised in an earlier round, once for each.
        """
        self._core.tell_failed_sink()
        return self._core.step()

    def step_unless(self, ready: Callable[[], bool]) -> list[StepResult]:
        """`step`, unless `ready()` is true once it is this thread's turn: for several threads that serve one engine."""
        return self._core.step(unless=ready)

    def cancel(self, request_id: int) -> None:
        """Drop a request and free all it holds; nothing happens if it is done already."""
        self._core.cancel(request_id)

    def check(self) -> None:
        """Raise EngineError unless every page of the KV pool is accounted for; done anyway whenever nothing is left."""
        self._core.check()

    def reset(self) -> None:
        """Drop every request, whatever state a failed step left it in; the engine serves new ones as if just built."""
        self._core.reset()

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """A prompt as token ids: questions and conversations through the target's chat template."""
        if isinstance(prompt, str):
            return self.target.chat.prompt_ids([{"role": "user", "content": prompt}])
        entries = listed(prompt)
        if not isinstance(entries, Sequence):
            raise EngineError(f"{_PROMPTS}, not {type(prompt).__name__}: {prompt!r:.80}")
        if not entries:
            raise EngineError("the prompt is empty; give it a question, messages or token ids")
        messages = [message for message in entries if isinstance(message, dict)]
        if not messages:
            return list(whole_numbers(_PROMPTS, entries))
        if len(messages) < len(entries):
            raise EngineError(f"{_PROMPTS}; this list holds messages and something else")
        return self.target.chat.prompt_ids(messages)

    def restart_stats(self) -> None:
        """Reset `stats`, as after a warm-up, while nothing is running."""
        self._core.restart_stats()

    def stats(self) -> EngineStats:
        """Counters and times since the engine started."""
        return self._core.stats()

    def _refuse_unknown_tokens(self, params: SamplingParams) -> None:
        vocabulary = self.target.decoder.config.vocab_size
        for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            unknown = [token for token in tokens if token >= vocabulary]
            if unknown:
                raise EngineError(
                    f"{name} names token {unknown[0]}, but the target's ids are 0..{vocabulary - 1}; use one of those"
                )

    def _refuse_dropped(self, request_id: int, complete: Callable[[], bool]) -> None:
        """Raise EngineError for a request that will never complete."""
        if not self._core.holds(request_id) and not complete():
            raise EngineError(
                "the request was dropped before its answer was complete: it was cancelled, or the engine was reset; "
                "send it again"
            )


class _Answer:
    """A streamed request: its results as they come, as pieces."""

    def __init__(self, engine: Engine, prompt: Prompt, params: SamplingParams, speculate: bool) -> None:
        self.complete = False
        self._engine = engine
        self._results: queue.SimpleQueue[StepResult] = queue.SimpleQueue()
        skip = params.skip_special_tokens
        self._detokenizer = Detokenizer(engine.target.tokenizer, skip_special=skip)
        ids = engine.prompt_ids(prompt)
        self._request = engine.submit(ids, params, speculate=speculate, sink=self._results.put)

    def ready(self) -> Iterator[Piece]:
        """The pieces that have come in."""
        while not self._results.empty():
            result = self._results.get()
            self.complete = result.completion is not None
            text = self._text(result) if result.text is None else result.text
            yield Piece(
                text, result.token_ids, result.origins, result.completion, result.logprobs, result.sources
            )

    def _text(self, result: StepResult) -> str:
        stopped = result.completion is not None and result.completion.finish_reason != "length"
        tokens = result.token_ids[:-1] if stopped else result.token_ids  # the stop token is no text
        return self._detokenizer.add(tokens, last=self.complete)

    def advance(self) -> None:
        """Step the engine, unless another thread's step has delivered something meanwhile."""
        self._engine.step_unless(self._has_results)
        self._engine._refuse_dropped(self._request, self._has_results)

    def _has_results(self) -> bool:
        return not self._results.empty()

    def cancel(self) -> None:
        self._engine._core.leave(self._request)


# For `help` and editors: the keywords by name.
Engine.__init__.__signature__ = inspect.signature(Engine.__init__).replace(  # type: ignore[attr-defined]
    parameters=[
        *[
            one
            for one in inspect.signature(Engine.__init__).parameters.values()
            if one.kind is not one.VAR_KEYWORD
        ],
        *EngineOptions.signature().parameters.values(),
    ]
)
