"""The requests clients may send: OpenAI's fields, some fields named as in vLLM, and three of our own.

vLLM's: top_k, min_p, min_tokens, repetition_penalty, stop_token_ids, ignore_eos, return_token_ids, structured_outputs.
Ours: `speculate` (false: plain decode for this request), `return_trace` (origins of tokens, and draft trees), `learn`
(false: nothing is learnt from this request).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from fledge.server import renamed
from fledge.server.answer_forms import ResponseFormat, StructuredOutputs, lark, usable
from fledge.server.conversation import AllowedTools, ChatMessage, NamedTool, Tool, Tools
from fledge.server.stream import StreamOptions
from fledge.server.strict import Several, StrictBody
from fledge.server.values import (
    AnyTokenLimit,
    Biases,
    Finite,
    Seed,
    StopText,
    TokenId,
    TokenIds,
    TokenLimit,
    UserName,
    Whole,
)

_COLDEST = 0.001  # below it, dividing by the temperature would overflow, and the answer is the greedy one
_LEAST_TOP_P = 1e-6
_GUIDED = {  # other servers' names of structured_outputs' fields: vLLM's older ones, then llama.cpp's
    **{f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")},
    "json_schema": "json",
    "grammar": "grammar",
}


class Generation(StrictBody):
    """The fields common to chat and text completions."""

    form_place: ClassVar[str] = "response_format.json_schema.schema"  # what the client calls it
    limit_may_exceed: ClassVar[bool] = False  # max_tokens may be more than the context has room for
    _form_field: str = PrivateAttr("")  # where the form stands, if the client gives it another name
    n: Annotated[int | None, Whole] = Field(None, ge=1, le=1024)
    temperature: Annotated[Finite, Field(ge=0, le=100)] | None = Field(
        None, description="default 1; 0, and all below 0.001, is greedy"
    )
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = Field(None, description="0: the most likely token")
    top_k: Annotated[int | None, Whole] = Field(None, ge=-1, lt=1 << 31, description="0 or -1: all tokens")
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Finite, Field(ge=0.01, le=100)] | None = None
    logit_bias: Biases | None = None
    stop: StopText | Annotated[list[StopText | TokenId], Field(max_length=64, fail_fast=True)] | None = Field(
        None, description="strings, or ids of tokens, that end the answer and don't appear in it"
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=256, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = Field(None, description="default true: leave them out of the text")
    include_stop_str_in_output: bool | None = Field(None, description="include the stop string in the answer")
    bad_words: Annotated[list[StopText], Field(max_length=256, fail_fast=True)] | None = Field(
        None, description="texts that the answer doesn't contain"
    )
    model: str | None = Field(None, max_length=512, description="one of /v1/models; default: the first")
    max_tokens: TokenLimit = Field(None, description="-1: as left out")
    min_tokens: Annotated[int | None, Whole] = Field(
        None, ge=0, lt=1 << 31, description="nothing ends the answer earlier"
    )
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = None
    return_trace: bool | None = Field(None, description="streams only: origin of each token, draft trees")
    speculate: bool | None = Field(None, description="false: plain decode for this request")
    learn: bool | None = Field(
        None, description="false: a server that learns doesn't learn from this request"
    )
    user: UserName = Field(None, description="written to the log with the request's line")
    safety_identifier: UserName = Field(None, description="the newer name of user")
    best_of: Annotated[int | None, Whole] = Field(
        None, ge=1, le=1024, description="make so many answers, and give the n most likely per token"
    )
    truncate_prompt_tokens: Annotated[int | None, Whole] = Field(
        None, ge=-1, lt=1 << 31, description="keep only so many tokens, the last ones; -1: as many as fit"
    )
    guided_json: dict[str, Any] | str | None = Field(None, description="structured_outputs.json")
    guided_regex: str | None = Field(None, description="structured_outputs.regex")
    guided_choice: list[str] | None = Field(None, description="structured_outputs.choice")
    guided_grammar: str | None = Field(None, description="structured_outputs.grammar")
    json_schema: dict[str, Any] | None = Field(
        None, description="structured_outputs.json, of llama.cpp's clients"
    )
    grammar: str | None = Field(
        None, max_length=65536, description="the answer's form in GBNF, llama.cpp's syntax"
    )

    @field_validator("temperature")
    @classmethod
    def _almost_greedy_is_greedy(cls, value: float | None) -> float | None:
        return 0.0 if value is not None and value < _COLDEST else value

    @field_validator("top_p")
    @classmethod
    def _at_least_one_token(cls, value: float | None) -> float | None:
        return None if value is None else max(value, _LEAST_TOP_P)

    @field_validator("logit_bias")
    @classmethod
    def _keys_are_token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or ():
            if not (key.isascii() and key.isdecimal() and len(key) < 10):
                raise ValueError("keys are token ids, written as strings")
        return value

    @classmethod
    def _renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        return renamed.generation(data)

    @model_validator(mode="after")
    def _options_of_streams(self) -> Generation:
        if not self.stream:
            if self.stream_options is not None:
                raise ValueError("stream_options needs stream: true")
            if self.return_trace:
                raise ValueError("return_trace needs stream: true")
        if self.return_trace and self.stop:
            raise ValueError("return_trace can't be combined with stop")
        return self

    @model_validator(mode="after")
    def _best_of_several(self) -> Generation:
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise ValueError(f"best_of is {self.best_of}, less than n; leave it out, or raise it")
        if self.stream and self.picks:
            raise ValueError("best_of can't be streamed: which answers are best is known at the end")
        return self

    @model_validator(mode="after")
    def _guided(self) -> Generation:
        """Other servers' names of structured_outputs."""
        guided = {name: value for name in _GUIDED if (value := getattr(self, name)) is not None}
        if guided:
            if self.structured_outputs is not None:
                raise ValueError("give either structured_outputs or one of guided_json and its siblings")
            if len(guided) > 1:
                raise ValueError(f"give one of {', '.join(_GUIDED)}")
            ((name, value),) = guided.items()
            value = lark(value) if name == "grammar" else value
            self.structured_outputs = StructuredOutputs.model_validate({_GUIDED[name]: value})
            self._form_field = name
            setattr(self, name, None)  # now said in one way; a large body is validated twice (`BodyRoute`)
        return self

    @model_validator(mode="after")
    def _bad_words_are_a_form(self) -> Generation:
        if self.bad_words and (self.structured_outputs or self.answer_schema is not None):
            raise ValueError("bad_words can't be combined with a form of the answer; leave one of them out")
        if self.bad_words and (self.min_tokens or self.ignore_eos):
            raise ValueError("bad_words can't be combined with min_tokens and ignore_eos; leave those out")
        return self

    @model_validator(mode="after")
    def _one_form(self) -> Generation:
        if self.structured_outputs is not None and self.response_format is not None:
            raise ValueError("give either response_format or structured_outputs")
        return self

    @property
    def picks(self) -> bool:
        """True if more answers are generated than returned."""
        return (self.best_of or 1) > (self.n or 1)

    @property
    def form(self) -> dict[str, Any] | None:
        """The engine's structured_outputs."""
        if self.structured_outputs is not None:
            return self.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        if self.bad_words:
            words = "|".join(re.escape(word).replace("/", r"\/") for word in self.bad_words)
            return {"grammar": f"start: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:.*({words}).*)/"}
        return None if self.answer_schema is None else {"json": self.answer_schema}

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema given by response_format."""
        requested = self.response_format
        if requested is None or requested.type == "text":
            return None
        return {"type": "object"} if requested.json_schema is None else usable(requested.json_schema.schema_)

    @property
    def form_named(self) -> str:
        """The client's name for the answer's form."""
        if self._form_field:
            return self._form_field
        if self.structured_outputs is not None:
            return f"structured_outputs.{next(iter(self.form or {}))}"
        return "bad_words" if self.bad_words else self.form_place


TemplateKwargs = Annotated[
    dict[str, Any],
    Field(max_length=16, description="options that the chat template reads, such as enable_thinking"),
]


class ChatRequest(Generation):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Several]
    tools: Tools | None = Field(None, description="functions the answer may call")
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = Field(
        None,
        description="default auto; required: at least one call and nothing else; or the function to call",
    )
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")
    chat_template_kwargs: TemplateKwargs | None = None
    max_completion_tokens: TokenLimit = Field(None, description="the newer name of max_tokens")
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Whole] = Field(None, ge=0, le=20)
    add_generation_prompt: bool | None = Field(None, description="false: no opening of the assistant's turn")
    continue_final_message: bool | None = Field(
        None, description="the answer continues the last message, which is the assistant's"
    )
    reasoning_effort: str | int | None = Field(
        None, description="for chat templates that look at it, otherwise ignored"
    )

    enable_thinking: bool | None = Field(
        None, description="for chat templates that look at it, otherwise ignored; also `thinking` and `think`"
    )

    @classmethod
    def _renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        return renamed.chat(data)

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self

    @model_validator(mode="after")
    def _final_message_to_continue(self) -> ChatRequest:
        if not self.continue_final_message:
            return self
        if self.add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        last = self.messages[-1]
        if last.role != "assistant" or last.tool_calls or not last.plain["content"]:
            raise ValueError("continue_final_message needs a last message with content from the assistant")
        return self

    @model_validator(mode="after")
    def _tools_and_choice(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools or () if tool]
        if len(set(names)) < len(names):
            raise ValueError("tools has two functions with the same name; rename one")
        if self.must_call and not names:
            raise ValueError("tool_choice asks for a call, but there are no functions in tools; add some")
        if not self._chosen <= set(names):
            raise ValueError("tool_choice names a function that isn't in tools; add it there")
        if self.must_call and not self.offered:
            raise ValueError("tool_choice requires a call and allows no function; allow one")
        for place, tool in enumerate(self.tools or ()):
            if tool is not None and not tool._place:
                tool._place = f"tools.{place}.function.parameters"
        if self.offered and self.bad_words:
            raise ValueError("bad_words can't be combined with tools; leave one of them out")
        if self.offered and self.structured_outputs is not None:
            raise ValueError(
                "structured_outputs leaves no room for calls: use response_format, leave out tools, or set "
                'tool_choice to "none"'
            )
        if self.must_call and self.answer_schema is not None:
            raise ValueError("tool_choice requires calls, response_format an answer; give one of them")
        return self

    @property
    def must_call(self) -> bool:
        """True if the answer consists of calls only."""
        if isinstance(self.tool_choice, AllowedTools):
            return self.tool_choice.allowed_tools.mode == "required"
        return self.tool_choice not in (None, "none", "auto")

    @property
    def _chosen(self) -> set[str]:
        """The functions that tool_choice names; none: all."""
        if isinstance(self.tool_choice, NamedTool):
            return {self.tool_choice.function.name}
        if isinstance(self.tool_choice, AllowedTools):
            return {tool.function.name for tool in self.tool_choice.allowed_tools.tools if tool}
        return set()

    @property
    def offered(self) -> list[Tool]:
        """The functions this answer may call."""
        if self.tool_choice == "none" or not self.tools:
            return []
        functions = [tool for tool in self.tools if tool is not None]
        if isinstance(self.tool_choice, NamedTool | AllowedTools):
            return [tool for tool in functions if tool.function.name in self._chosen]
        return functions

    @property
    def wanted_tokens(self) -> int | None:
        """The token limit, by either name."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """Number of alternatives to report per token; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Generation):
    """POST /v1/completions."""

    prompt: str | TokenIds | Annotated[list[str], Several] | Annotated[list[TokenIds], Several]
    add_special_tokens: bool | None = Field(
        None, description="default true: those the tokenizer adds, such as a beginning"
    )
    max_tokens: AnyTokenLimit = Field(
        None, description="default 16, also for -1; 0: the prompt is read, and nothing written"
    )
    logprobs: Annotated[int | None, Whole] = Field(None, ge=0, le=20)
    echo: bool | None = Field(None, description="include the prompt in the text")

    prompt_logprobs: Annotated[int | None, Whole] = Field(
        None, ge=0, le=20, description="log probabilities of the prompt's tokens, with so many alternatives"
    )

    @property
    def wanted_prompt_logprobs(self) -> int | None:
        """Number of alternatives to report per token of the prompt; None: no log probabilities."""
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((top for top in wanted if top is not None), default=None)

    @model_validator(mode="after")
    def _whole_answers_only(self) -> CompletionRequest:
        if self.stream and self.wanted_prompt_logprobs is not None:
            raise ValueError("a prompt's log probabilities can't be streamed; leave stream out")
        return self

    @property
    def wanted_tokens(self) -> int | None:
        """The token limit; OpenAI's default is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """Number of alternatives to report per token; None: no log probabilities."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)
