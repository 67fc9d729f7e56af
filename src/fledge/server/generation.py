"""From a request's body to its answer: prompts, jobs, and the answer, complete or as a stream.

When a request ends early (disconnect, timeout, or one of its answers fails), all its jobs are cancelled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain

from starlette.requests import Request
from starlette.responses import Response

from fledge.base.errors import EngineError
from fledge.engine import Engine, GrammarsFullError, SamplingParams
from fledge.engine.schema_faults import fault_in
from fledge.engine.structured import Follower
from fledge.server import errors
from fledge.server.answer_forms import usable
from fledge.server.dialect import Dialect
from fledge.server.errors import ApiError
from fledge.server.job import Job, deltas
from fledge.server.options import ServerOptions
from fledge.server.protocol import ChatRequest, CompletionRequest
from fledge.server.render import Json, Renderer, Rendering, encode, usage
from fledge.server.response_store import ResponseStore
from fledge.server.stream import EventStream
from fledge.server.tokens import Tokens
from fledge.server.worker import EngineWorker

_COMPILERS = 2  # grammars compiled at once; the processors are the engine's
_STATUS_WAIT_S = 5.0  # how long a stream's HTTP status waits for its first token


class Server:
    """Answers chat and text completions with an engine."""

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        self.engine = engine
        self.options = options
        self.model_names = options.model_names or (engine.target.name,)
        self.target_name = options.target or engine.target.name  # clients may load the tokenizer by this name
        self.worker = EngineWorker(engine, max_queue=options.max_queue, model=self.model_names[0])
        self.started = datetime.now(UTC)
        self.responses = ResponseStore()
        self.tokens = Tokens(engine.target, engine.max_context)
        self._compiling = asyncio.Semaphore(_COMPILERS)
        self._dialect = Dialect(engine.target, options.tool_call_parser, options.reasoning_parser)

    async def respond(
        self, body: ChatRequest | CompletionRequest, request: Request, rendering: Rendering | None = None
    ) -> Response:
        """The HTTP response, streamed if requested; `rendering` replaces OpenAI's format."""
        deadline = asyncio.get_running_loop().time() + self.options.request_timeout
        model = self.check_model(body.model)
        self._check_answers(_answers(body), "n")
        jobs = await self._jobs(body, request)
        renderer = rendering or Renderer(body, model, self.tokens)
        request.state.visit.notes.update(answer_id=renderer.id, stream=bool(body.stream))
        self._submit(jobs, request)
        if body.stream:
            return await self._stream(jobs, renderer, request, deadline)
        await self._finish(jobs, request, deadline)
        return Response(encode(renderer.whole(_best(body, jobs))), media_type="application/json")

    async def predictions(
        self, bodies: Sequence[ChatRequest | CompletionRequest], request: Request
    ) -> list[Json]:
        """Vertex AI's predictions: all answers, generated together, as JSON."""
        deadline = asyncio.get_running_loop().time() + self.options.request_timeout
        models = [self.check_model(body.model) for body in bodies]
        self._check_answers(sum(map(_answers, bodies)), "instances")
        jobs = [await self._jobs(body, request) for body in bodies]
        together = [job for its_jobs in jobs for job in its_jobs]
        self._submit(together, request)
        await self._finish(together, request, deadline)
        return [
            Renderer(body, model, self.tokens).whole(_best(body, its_jobs))
            for body, model, its_jobs in zip(bodies, models, jobs, strict=True)
        ]

    def check_model(self, name: str | None) -> str:
        """The model's name in responses. Any name is this model's, unless the server is strict: then an ApiError."""
        if name is None or (name not in self.model_names and not self.options.strict_model_name):
            return self.model_names[0]
        return self.known_model(name)

    def known_model(self, name: str) -> str:
        """The name, if it is one of the model's; else an ApiError."""
        if name not in self.model_names:
            raise ApiError(
                404, f"unknown model; this server has {', '.join(self.model_names)}", param="model",
                code="model_not_found",
            )  # fmt: skip
        return name

    def _check_answers(self, requested: int, param: str) -> None:
        limit = min(self.options.max_answers, self.worker.most_answers)  # more could never be queued
        if requested > limit:
            raise errors.invalid(
                f"the request asks for {requested} answers, but only {limit} are allowed at once; request fewer",
                param,
            )

    async def _jobs(self, body: ChatRequest | CompletionRequest, request: Request) -> list[Job]:
        prompts = await self._prompts(body)
        visit = request.state.visit
        if (user := body.safety_identifier or body.user) is not None:
            visit.notes["user"] = user
        form, grammar = await self._form(body, prompts[0][0])
        return [
            Job(
                prompt,
                self._params(body, prompt, copy, form),
                tokenizer=self.engine.target.tokenizer,
                client=visit.client,
                speculate=body.speculate is not False,
                trace=bool(body.return_trace),
                record=None if body.learn is False else visit.client,
                echo=echo,
                continues=isinstance(body, CompletionRequest) or bool(body.continue_final_message),
                with_stop=bool(body.include_stop_str_in_output),
                prompt_only=body.wanted_tokens == 0,
                grammar=grammar,
                reader=self._dialect.reader(body, prompt) if isinstance(body, ChatRequest) else None,
            )
            for prompt, echo in prompts
            for copy in range(_copies(body))
        ]

    async def _form(
        self, body: ChatRequest | CompletionRequest, prompt: list[int]
    ) -> tuple[Json | None, Follower | None]:
        """The answer's format, as the engine's structured_outputs; and compiled, for the engine to find it ready.

        It is compiled here, in a thread, since a large schema takes a while, and to reject an invalid one.
        """
        grammar = None
        form = self._dialect.form(body, prompt) if isinstance(body, ChatRequest) else body.form
        if form is not None:
            field = "response_format" if body.structured_outputs is None else "structured_outputs"
            field = "bad_words" if body.bad_words else field
            field, named = ("tools", "tools") if body.form is None else (field, body.form_named)
            async with self._compiling:
                with errors.refused(field, named):
                    params = SamplingParams(structured_outputs=form)
                    try:
                        grammar = await asyncio.to_thread(self.engine.follower, params)
                    except GrammarsFullError:
                        raise
                    except EngineError:
                        await asyncio.to_thread(_raise_schema_fault, body)
                        raise
        return form, grammar

    def _submit(self, jobs: list[Job], request: Request) -> None:
        for job in jobs:
            job.news = jobs[0].news
        prompt_tokens = usage(jobs)["prompt_tokens"]
        request.state.visit.notes.update(prompt_tokens=prompt_tokens, answers=len(jobs))
        self.worker.submit(jobs)

    async def _prompts(self, body: ChatRequest | CompletionRequest) -> list[tuple[list[int], str]]:
        """The ids of each prompt, and its text if `echo` is set."""
        if isinstance(body, ChatRequest):
            return [(await self.chat_ids(body), "")]
        prompts = []
        for prompt in body.prompts:
            if isinstance(prompt, str):
                ids = await self.tokens.text(prompt, special=body.add_special_tokens is not False)
            else:
                self.tokens.check(prompt, "prompt")
                ids = prompt
            ids = self._truncated(body, ids)
            text = isinstance(prompt, str) and body.truncate_prompt_tokens is None
            echo = "" if not body.echo else str(prompt) if text else await self.tokens.decode(ids)
            prompts.append((ids, echo))
        return prompts

    async def chat_ids(self, body: ChatRequest) -> list[int]:
        """The ids of a chat's prompt."""
        ids = await self.tokens.chat(
            body.messages,
            self._template_options(body),
            body.offered,
            opening=body.add_generation_prompt is not False,
            continues=bool(body.continue_final_message),
        )
        return self._truncated(body, ids + self._dialect.opening(body))

    def _template_options(self, body: ChatRequest) -> Json:
        """Options for the chat template; `reasoning_effort` and `enable_thinking` only if it reads them."""
        options = dict(body.chat_template_kwargs or {})
        if body.enable_thinking is not None:
            names = [
                name for name in ("enable_thinking", "thinking") if self.engine.target.chat.asks_for(name)
            ]
            options = {**dict.fromkeys(names, body.enable_thinking), **options}
        if body.reasoning_effort is not None and self.engine.target.chat.asks_for("reasoning_effort"):
            options.setdefault("reasoning_effort", body.reasoning_effort)
        return options

    def _truncated(self, body: ChatRequest | CompletionRequest, ids: list[int]) -> list[int]:
        """The last truncate_prompt_tokens ids."""
        kept = body.truncate_prompt_tokens
        if kept is None:
            return ids
        room = self.engine.max_context - (body.wanted_tokens or 1)
        return ids[-min(kept if kept > 0 else room, max(room, 1)) :]

    def _params(
        self, body: ChatRequest | CompletionRequest, prompt: list[int], copy: int, form: Json | None
    ) -> SamplingParams:
        """The engine's parameters for one answer; an ApiError for unsupported ones."""
        room = self.engine.max_context - len(prompt)
        requested = body.wanted_tokens
        if requested is not None and body.limit_may_exceed:
            requested = max(min(requested, room), 1)
        if not prompt:
            raise errors.invalid("the prompt is empty; send at least one token", "prompt")
        if room < (requested or 1):
            raise errors.invalid(
                f"this model's maximum context length is {self.engine.max_context} tokens; the prompt has "
                f"{len(prompt)}, and {requested or 1} were requested. Shorten the prompt or lower max_tokens",
                "messages" if isinstance(body, ChatRequest) else "prompt",
                "context_length_exceeded",
            )
        stops = [] if body.stop is None else [body.stop] if isinstance(body.stop, str) else body.stop
        stop_ids = {
            "stop_token_ids": body.stop_token_ids or [],
            "stop": [stop for stop in stops if isinstance(stop, int)],
        }
        for field, ids in stop_ids.items():
            self.tokens.check(ids, field)
        with errors.refused(form=body.form_named if body.form is not None else "tool_choice"):
            return SamplingParams(
                max_tokens=room if requested is None else max(requested, 1),
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
                logprobs=(body.wanted_logprobs or 0) if body.picks else body.wanted_logprobs,
                prompt_logprobs=body.wanted_prompt_logprobs if isinstance(body, CompletionRequest) else None,
                stop=[stop for stop in stops if isinstance(stop, str)],
                structured_outputs=form,
                skip_special_tokens=self._dialect.skips_special(body),
            )

    async def _finish(self, jobs: list[Job], request: Request, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                async for _ in deltas(jobs):
                    pass
        except TimeoutError:
            raise errors.timed_out(self.options.request_timeout) from None
        finally:
            self._close(jobs, request)

    async def _stream(
        self, jobs: list[Job], renderer: Rendering, request: Request, deadline: float
    ) -> Response:
        try:
            # A rejection or failure before the first token is still an HTTP error.
            with suppress(TimeoutError):
                await asyncio.wait_for(jobs[0].news.wait(), _STATUS_WAIT_S)
            failed = next((job.error for job in jobs if job.error is not None), None)
            if failed is not None:
                raise failed
        except BaseException:
            self._close(jobs, request)
            raise
        return EventStream(
            _events(jobs, renderer),
            deadline=deadline,
            timeout_event=lambda: renderer.failed(errors.timed_out(self.options.request_timeout)),
            stall_timeout=self.options.stall_timeout,
            close=lambda: self._close(jobs, request),
        )

    def _close(self, jobs: list[Job], request: Request) -> None:
        """Log finished answers, and cancel the others."""
        notes, stats = request.state.visit.notes, [job.completion.stats for job in jobs if job.completion]
        notes["completion_tokens"] = sum(len(job.token_ids) for job in jobs)
        if stats:
            notes["ttft_ms"] = round(min(each.ttft_ms for each in stats), 1)
        for job in jobs:
            if not job.done:
                self.worker.metrics.ended("abort")
                self.worker.cancel(job)


async def _events(jobs: list[Job], renderer: Rendering) -> AsyncGenerator[bytes]:
    try:
        async for data in renderer.events(jobs):
            yield data
    except ApiError as error:
        yield renderer.failed(error)


def _raise_schema_fault(body: ChatRequest | CompletionRequest) -> None:
    """Raise an ApiError that names the part of a schema at fault, if it is one's."""
    given = body.structured_outputs.json_ if body.structured_outputs is not None else body.answer_schema
    with suppress(ValueError):
        given = json.loads(given) if isinstance(given, str) else given
    fault = None if given is None else fault_in(given)
    if fault is not None:
        field = "response_format" if body.structured_outputs is None else "structured_outputs"
        place = ".".join(filter(None, (body.form_named, fault.place)))
        raise errors.invalid(f"{place}: {fault.told}; leave it out, or express it differently", field)
    for tool in body.offered if isinstance(body, ChatRequest) else ():
        fault = fault_in(usable(tool.function.schema_of_arguments))
        if fault is not None:
            place = ".".join(filter(None, (tool._place, fault.place)))
            raise errors.invalid(
                f"{place} (of the function {tool.function.name}): {fault.told}; change it, or let tool_choice be "
                "auto, without a response_format",
                "tools",
            )


def _answers(body: ChatRequest | CompletionRequest) -> int:
    return _copies(body) * (len(body.prompts) if isinstance(body, CompletionRequest) else 1)


def _copies(body: ChatRequest | CompletionRequest) -> int:
    """Answers that are made to each prompt."""
    return max(body.n or 1, body.best_of or 1)


def _best(body: ChatRequest | CompletionRequest, jobs: Sequence[Job]) -> list[Job]:
    """The n answers to each prompt that are the most likely per token; the best first, as vLLM ranks them."""
    if not body.picks:
        return list(jobs)
    copies, chosen = _copies(body), []
    for first in range(0, len(jobs), copies):
        ranked = sorted(jobs[first : first + copies], key=_likelihood, reverse=True)
        chosen += ranked[: body.n or 1]
    return chosen


def _likelihood(job: Job) -> float:
    return sum(each.logprob for each in job.logprobs) / max(len(job.logprobs), 1)
