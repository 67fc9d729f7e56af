"""SGLang's own /generate: its request, answered as a text completion, in its response format.

    {"text": ..., "sampling_params": {"max_new_tokens": 8}}  ->  {"text": ..., "output_ids": [...], "meta_info": {...}}

In a stream every event holds the whole answer so far, as in SGLang.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from fledge.engine import TokenLogprob
from fledge.server.errors import ApiError
from fledge.server.job import Job, deltas
from fledge.server.protocol import CompletionRequest, Sampling
from fledge.server.render import Json, encode, json_number
from fledge.server.stream import DONE, event
from fledge.server.strict import Several, StrictBody, read
from fledge.server.tokens import Tokens
from fledge.server.values import Seed, TokenIds, Whole

_DEFAULT_TOKENS = 128


class NativeSampling(Sampling):
    """`sampling_params`."""

    max_new_tokens: Annotated[int | None, Whole] = Field(None, ge=1, lt=1 << 31)
    min_new_tokens: Annotated[int | None, Whole] = Field(None, ge=0, lt=1 << 31)
    no_stop_trim: bool | None = Field(None, description="as include_stop_str_in_output")
    sampling_seed: Seed | None = None
    json_schema: str | None = Field(None, max_length=1 << 20)
    regex: str | None = None


class GenerateRequest(StrictBody):
    """POST /generate."""

    text: str | Annotated[list[str], Several] | None = None
    input_ids: TokenIds | Annotated[list[TokenIds], Several] | None = None
    sampling_params: NativeSampling | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = Field(None, ge=0, le=20)
    return_text_in_logprobs: bool | None = None
    speculate: bool | None = Field(None, description="false: plain decode for this request")
    learn: bool | None = Field(None, description="false: nothing is learnt from this request")

    @model_validator(mode="after")
    def _consistent(self) -> GenerateRequest:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("give either text or input_ids")
        if self.top_logprobs_num and not self.return_logprob:
            raise ValueError("top_logprobs_num needs return_logprob: true")
        return self

    def completion(self) -> CompletionRequest:
        """The equivalent text completion; an ApiError if there is none."""
        sampling = self.sampling_params or NativeSampling()
        forms = {"json": sampling.json_schema, "regex": sampling.regex}
        form = {kind: value for kind, value in forms.items() if value is not None}
        fields: Json = {
            **{name: getattr(sampling, name) for name in Sampling.model_fields},
            "include_stop_str_in_output": sampling.no_stop_trim or sampling.include_stop_str_in_output,
            "prompt": self.input_ids if self.text is None else self.text,
            "max_tokens": sampling.max_new_tokens or _DEFAULT_TOKENS,
            "min_tokens": sampling.min_new_tokens,
            "seed": sampling.sampling_seed,
            "structured_outputs": form or None,
            "stream": self.stream,
            "speculate": self.speculate,
            "learn": self.learn,
            "logprobs": (self.top_logprobs_num or 0) if self.return_logprob else None,
            "return_token_ids": True,
        }
        completion = read(CompletionRequest, fields)
        if form:
            completion._form_field = (
                "sampling_params.json_schema" if "json" in form else "sampling_params.regex"
            )
        return completion

    @property
    def several(self) -> bool:
        """Whether the response is a list: for a list of prompts, or several answers to one."""
        prompts = self.input_ids if self.text is None else self.text
        is_list = isinstance(prompts, list) and not isinstance(prompts[0], int)
        return is_list or (self.sampling_params is not None and (self.sampling_params.n or 1) > 1)


class NativeRenderer:
    """One request's answers in SGLang's format."""

    def __init__(self, body: GenerateRequest, tokens: Tokens) -> None:
        self.id = uuid.uuid4().hex
        self._tokens = tokens
        self._several = body.several
        self._with_logprobs = bool(body.return_logprob)
        self._with_text = bool(body.return_text_in_logprobs)

    def whole(self, jobs: Sequence[Job]) -> Json | list[Json]:
        """The response to a request that doesn't stream."""
        answers = [self._answer(index, job) for index, job in enumerate(jobs)]
        return answers if self._several else answers[0]

    async def events(self, jobs: Sequence[Job]) -> AsyncGenerator[bytes]:
        """The answer so far, again and again."""
        async for index, _ in deltas(jobs):
            yield event(encode({**self._answer(index, jobs[index]), "index": index}))
        yield DONE

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that fails."""
        return event(encode(error.body())) + DONE

    def _answer(self, index: int, job: Job) -> Json:
        about: Json = {
            "id": f"{self.id}-{index}" if self._several else self.id,
            "finish_reason": _finish(job),
            "prompt_tokens": len(job.prompt_ids),
            "completion_tokens": len(job.token_ids),
        }
        if job.completion is not None:
            stats = job.completion.stats
            about["cached_tokens"] = stats.cached_tokens
            about["e2e_latency"] = time.perf_counter() - job.created
            if stats.drafted_rounds:
                about["spec_accept_length"] = stats.tau
                about["spec_verify_ct"] = stats.rounds
        if self._with_logprobs:
            about["input_token_logprobs"], about["input_top_logprobs"] = [], []
            about["output_token_logprobs"] = [
                self._entry(each.token_id, each.logprob) for each in job.logprobs
            ]
            about["output_top_logprobs"] = [self._top(each) for each in job.logprobs]
        return {"text": job.text, "output_ids": job.token_ids, "meta_info": about}

    def _top(self, entry: TokenLogprob) -> list[list[Any]] | None:
        return [self._entry(token_id, logprob) for token_id, logprob in entry.top] or None

    def _entry(self, token_id: int, logprob: float) -> list[Any]:
        return [json_number(logprob), token_id, self._tokens.token(token_id)[0] if self._with_text else None]


def _finish(job: Job) -> Json | None:
    if job.completion is None:
        return None
    if job.completion.finish_reason == "length":
        return {"type": "length", "length": len(job.token_ids)}
    matched = job.completion.stop_reason
    return {"type": "stop", "matched": job.token_ids[-1] if matched is None else matched}
