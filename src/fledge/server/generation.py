"""From a request's body to its answer: prompts, jobs, and the answer whole or as a stream.

Whatever ends a request early (the client leaves, the time is up, one of its answers fails) ends all its jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from fledge.engine import SamplingParams
from fledge.errors import EngineError
from fledge.server import errors
from fledge.server.dialect import Dialect
from fledge.server.errors import ApiError
from fledge.server.job import Delta, Job
from fledge.server.options import ServerOptions
from fledge.server.protocol import ChatRequest, CompletionRequest
from fledge.server.render import Json, Renderer, encode, usage
from fledge.server.stream import DONE, EventStream, event
from fledge.server.tokens import Tokens
from fledge.server.worker import EngineWorker

_STATUS_WAIT_S = 5.0  # how long a stream's first token may still decide about its HTTP status


class Rendering(Protocol):
    """What makes JSON of one request's jobs."""

    def whole(self, jobs: Sequence[Job]) -> Json | list[Json]:
        """The answer to a request that doesn't stream."""

    def chunk(self, index: int, job: Job, delta: Delta, *, first: bool) -> Json:
        """What a stream says when a choice has something new."""

    def usage_chunk(self, jobs: Sequence[Job]) -> Json:
        """What it says at its end, where usage was asked for."""


Form = Callable[[Renderer], Rendering]


@dataclass(frozen=True)
class Generator:
    """Answers chat and text completions."""

    worker: EngineWorker
    tokens: Tokens
    dialect: Dialect
    options: ServerOptions
    model_names: tuple[str, ...]

    async def respond(
        self, body: ChatRequest | CompletionRequest, request: Request, form: Form | None = None
    ) -> Response:
        """The HTTP answer, streamed if that was asked for; `form`: not in OpenAI's form, but in another."""
        deadline = asyncio.get_running_loop().time() + self.options.request_timeout
        jobs, openai = await self._prepare(body, request)
        renderer = openai if form is None else form(openai)
        request.state.visit.notes.update(answer_id=openai.id, stream=bool(body.stream))
        self._submit(jobs, request)
        if body.stream:
            return await self._stream(body, jobs, renderer, request, deadline)
        await self._finish(jobs, request, deadline)
        return Response(encode(renderer.whole(jobs)), media_type="application/json")

    async def answers(
        self, bodies: Sequence[ChatRequest | CompletionRequest], request: Request
    ) -> list[Json]:
        """The whole answers to all of them, made together, as JSON."""
        deadline = asyncio.get_running_loop().time() + self.options.request_timeout
        prepared = [await self._prepare(body, request) for body in bodies]
        jobs = [job for its_jobs, _ in prepared for job in its_jobs]
        if len(jobs) > self.most_answers:
            raise errors.invalid(
                f"instances times n is more than the {self.most_answers} this server allows", "instances"
            )
        self._submit(jobs, request)
        await self._finish(jobs, request, deadline)
        return [renderer.whole(its_jobs) for its_jobs, renderer in prepared]

    @property
    def most_answers(self) -> int:
        """Of one request: more than batch and queue hold could never be taken."""
        return min(self.options.max_answers, self.worker.most_answers)

    def check_model(self, name: str | None) -> str:
        """The model's name as the client will see it; an ApiError if it is none of ours."""
        if name is not None and name not in self.model_names:
            raise ApiError(
                404, f"this server has no such model; it has {', '.join(self.model_names)}", param="model",
                code="model_not_found",
            )  # fmt: skip
        return name or self.model_names[0]

    async def _prepare(
        self, body: ChatRequest | CompletionRequest, request: Request
    ) -> tuple[list[Job], Renderer]:
        model, chat = self.check_model(body.model), isinstance(body, ChatRequest)
        prompts = await self._prompts(body)
        echoes = await self._echoes(body, prompts)
        copies = body.n or 1
        if len(prompts) * copies > self.most_answers:
            raise errors.invalid(
                f"prompts times n is more than the {self.most_answers} this server allows", "n"
            )
        visit = request.state.visit
        if (user := body.safety_identifier or body.user) is not None:
            visit.notes["user"] = user
        form = await self._form(body)
        jobs = [
            Job(
                prompt,
                self._params(body, prompt, copy, form),
                tokenizer=self.worker.engine.target.tokenizer,
                client=visit.client,
                speculate=body.speculate is not False,
                trace=bool(body.return_trace),
                echo=echo,
                reader=self.dialect.reader(body, prompt) if isinstance(body, ChatRequest) else None,
            )
            for prompt, echo in zip(prompts, echoes, strict=True)
            for copy in range(copies)
        ]
        renderer = Renderer.make(
            chat=chat,
            model=model,
            tokens=self.tokens,
            token_ids=bool(body.return_token_ids),
            logprobs=body.wanted_logprobs is not None,
        )
        return jobs, renderer

    async def _form(self, body: ChatRequest | CompletionRequest) -> Json | None:
        """What the engine calls structured_outputs.

        Compiled beforehand, on a thread of its own: a large schema takes its time, a bad one is refused.
        """
        form = self.dialect.form(body) if isinstance(body, ChatRequest) else body.form
        if form is not None:
            try:
                await asyncio.to_thread(self.worker.engine.follower, SamplingParams(structured_outputs=form))
            except EngineError as error:
                given = "response_format" if body.structured_outputs is None else "structured_outputs"
                raise errors.invalid(str(error), "tools" if body.form is None else given) from error
        return form

    def _submit(self, jobs: list[Job], request: Request) -> None:
        prompt_tokens = usage(jobs)["prompt_tokens"]
        request.state.visit.notes.update(prompt_tokens=prompt_tokens, answers=len(jobs))
        self.worker.submit(jobs)

    async def _prompts(self, body: ChatRequest | CompletionRequest) -> list[list[int]]:
        if isinstance(body, ChatRequest):
            return [await self.tokens.chat(body.messages, body.chat_template_kwargs, body.offered)]
        special = body.add_special_tokens is not False
        if len(body.prompts) > self.most_answers:
            raise errors.invalid(f"more than {self.most_answers} prompts; send fewer", "prompt")
        if any(
            max(ids, default=0) >= self.tokens.vocabulary for ids in body.prompts if not isinstance(ids, str)
        ):
            raise errors.invalid(
                f"the prompt holds ids beyond the vocabulary of {self.tokens.vocabulary}", "prompt"
            )
        return [
            await self.tokens.text(prompt, special=special) if isinstance(prompt, str) else prompt
            for prompt in body.prompts
        ]

    async def _echoes(
        self, body: ChatRequest | CompletionRequest, prompts: Sequence[list[int]]
    ) -> Sequence[str]:
        """What answers begin with: the prompts, if that was asked for."""
        if isinstance(body, ChatRequest) or not body.echo:
            return [""] * len(prompts)
        return [
            given if isinstance(given, str) else await self.tokens.decode(given) for given in body.prompts
        ]

    def _params(
        self, body: ChatRequest | CompletionRequest, prompt: list[int], copy: int, form: Json | None
    ) -> SamplingParams:
        """The engine's parameters for one answer; what can't be answered is refused before it is queued."""
        room = self.worker.engine.max_context - len(prompt)
        wanted = body.wanted_tokens
        if not prompt:
            raise errors.invalid("the prompt is empty; send at least one token", "prompt")
        if room < (wanted or 1):
            raise errors.invalid(
                f"this model's maximum context length is {self.worker.engine.max_context} tokens; the prompt has "
                f"{len(prompt)}, and {wanted or 1} were asked for. Shorten the prompt or lower max_tokens",
                "messages" if isinstance(body, ChatRequest) else "prompt",
                "context_length_exceeded",
            )
        given = [] if body.stop is None else [body.stop] if isinstance(body.stop, str) else body.stop
        stop_ids = {
            "stop_token_ids": body.stop_token_ids or [],
            "stop": [stop for stop in given if isinstance(stop, int)],
        }
        for field, ids in stop_ids.items():
            if max(ids, default=0) >= self.tokens.vocabulary:
                raise errors.invalid(
                    f"{field} holds ids beyond the vocabulary of {self.tokens.vocabulary}", field
                )
        try:
            return SamplingParams(
                max_tokens=wanted or room,
                min_tokens=body.min_tokens or 0,
                temperature=1.0 if body.temperature is None else body.temperature,
                top_p=1.0 if body.top_p is None else body.top_p,
                top_k=max(body.top_k or 0, 0),
                min_p=body.min_p or 0.0,
                seed=None if body.seed is None else body.seed + copy,
                stop_token_ids=[*chain.from_iterable(stop_ids.values())],
                ignore_eos=bool(body.ignore_eos),
                repetition_penalty=body.repetition_penalty or 1.0,
                presence_penalty=body.presence_penalty or 0.0,
                frequency_penalty=body.frequency_penalty or 0.0,
                logit_bias={int(token): bias for token, bias in (body.logit_bias or {}).items()},
                logprobs=body.wanted_logprobs,
                stop=[stop for stop in given if isinstance(stop, str)],
                structured_outputs=form,
                skip_special_tokens=self.dialect.skips_special(body),
            )
        except EngineError as error:
            raise errors.invalid(str(error)) from error

    async def _finish(self, jobs: list[Job], request: Request, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                for job in jobs:
                    await job.finished()
        except TimeoutError:
            raise errors.timed_out(self.options.request_timeout) from None
        finally:
            self._close(jobs, request)

    async def _stream(
        self,
        body: ChatRequest | CompletionRequest,
        jobs: list[Job],
        renderer: Rendering,
        request: Request,
        deadline: float,
    ) -> Response:
        events = self._events(body, jobs, renderer)
        try:
            # A refusal or a failure before the first token is still an HTTP error.
            ready = [asyncio.ensure_future(job.wait()) for job in jobs]
            try:
                await asyncio.wait(ready, timeout=_STATUS_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in ready:
                    task.cancel()
            failed = next((job.error for job in jobs if job.error is not None), None)
            if failed is not None:
                raise failed
        except BaseException:
            self._close(jobs, request)
            raise
        return EventStream(
            events,
            deadline=deadline,
            late=event(encode(errors.timed_out(self.options.request_timeout).body())) + DONE,
            stall_timeout=self.options.stall_timeout,
            close=lambda: self._close(jobs, request),
        )

    async def _events(
        self, body: ChatRequest | CompletionRequest, jobs: list[Job], renderer: Rendering
    ) -> AsyncGenerator[bytes]:
        options = body.stream_options
        continuous = bool(options and options.continuous_usage_stats)
        everything = body.return_trace or body.return_token_ids  # not only what can be read
        begun: set[int] = set()
        try:
            async for index, delta in _merged(jobs):
                delta.said = jobs[index].said(delta.text, last=delta.completion is not None)
                if not (delta.said or delta.completion or delta.logprobs or everything):
                    continue  # part of a character, or what may become a stop string or a call
                chunk = renderer.chunk(index, jobs[index], delta, first=index not in begun)
                begun.add(index)
                if continuous:
                    chunk["usage"] = usage(jobs)
                elif options and options.include_usage:
                    chunk["usage"] = None
                yield event(encode(chunk))
            if options and options.include_usage:
                yield event(encode(renderer.usage_chunk(jobs)))
        except ApiError as error:
            yield event(encode(error.body()))
        yield DONE

    def _close(self, jobs: list[Job], request: Request) -> None:
        """Note what was answered, and end what wasn't."""
        notes, stats = request.state.visit.notes, [job.completion.stats for job in jobs if job.completion]
        notes["completion_tokens"] = sum(len(job.token_ids) for job in jobs)
        if stats:
            notes["ttft_ms"] = round(min(each.ttft_ms for each in stats), 1)
        for job in jobs:
            if not job.done:
                self.worker.metrics.finished(job, "abort")
                self.worker.cancel(job)


async def _merged(jobs: list[Job]) -> AsyncIterator[tuple[int, Delta]]:
    """All jobs' deltas as they come, with the number of the job."""
    if len(jobs) == 1:
        async for delta in jobs[0].deltas():
            yield 0, delta
        return
    sources = [job.deltas() for job in jobs]
    upcoming = {asyncio.ensure_future(anext(source)): index for index, source in enumerate(sources)}
    try:
        while upcoming:
            done, _ = await asyncio.wait(upcoming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = upcoming.pop(task)
                try:
                    delta = task.result()
                except StopAsyncIteration:
                    continue
                upcoming[asyncio.ensure_future(anext(sources[index]))] = index
                yield index, delta
    finally:
        for task in upcoming:
            task.cancel()
        await asyncio.gather(*upcoming, return_exceptions=True)
