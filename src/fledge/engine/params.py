"""Decoding parameters of one request, and their validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from fledge.base.errors import EngineError
from fledge.engine import structured
from fledge.engine.checks import number, switch, texts, whole, whole_numbers

MAX_LOGPROBS = 20  # most likely tokens reported beside the chosen one
# Beyond these, float32 logits overflow or probabilities vanish; the server's own limits lie within them.
_TEMPERATURES = (1e-4, 1e4)
_LEAST_TOP_P = 1e-6
_REPETITIONS = (0.01, 100.0)
_MAX_TOP_K = 2**31 - 1
_MAX_PENALTY = 2.0  # absolute value of a presence or frequency penalty
_MAX_BIAS = 100.0  # absolute value of a logit_bias entry
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_LOGPROBS = (
    f"how many of the most likely tokens to report, 0 to {MAX_LOGPROBS}, or None for no log probabilities"
)


class SamplingOptions(TypedDict, total=False):
    """The keywords of `Engine.generate` and the streams: the fields of `SamplingParams`, which says what they mean."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: int | None
    prompt_logprobs: int | None
    stop: str | Sequence[str]
    structured_outputs: Mapping[str, Any] | None
    skip_special_tokens: bool


@dataclass(frozen=True)
class SamplingParams:
    """Decoding parameters of one request.

    The steps apply in this order: logit_bias; repetition, frequency and presence penalties; min_tokens; structured
    outputs; temperature; top-k; top-p; min-p. Those before temperature count for greedy requests, too.
    """

    max_tokens: int = 128
    min_tokens: int = 0  # before so many tokens nothing ends the answer: no stop token can be chosen
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0  # smallest set of tokens holding this much probability; 1: all
    top_k: int = 0  # the k most probable tokens; 0: all
    min_p: float = 0.0  # tokens at least this probable, relative to the most probable one
    seed: int | None = None  # None: a fresh one per request
    stop_token_ids: Sequence[int] = ()  # besides the template's turn end
    ignore_eos: bool = False  # True: only max_tokens, stop_token_ids and stop end the answer
    # Logits of tokens in the prompt or the answer so far: positive ones divided, negative ones multiplied (CTRL,
    # arXiv 1909.05858, with the sign rule of transformers).
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0  # subtracted from the logits of tokens that are in the answer so far
    frequency_penalty: float = 0.0  # subtracted once for each time the token is in the answer so far
    # Token id -> added to its logit.
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    # Report log probabilities, with those of this many most likely tokens; None: don't
    logprobs: int | None = None
    # The same for the prompt's tokens, which then come from no prefix cache
    prompt_logprobs: int | None = None
    stop: str | Sequence[str] = ()  # the answer ends before the first of these texts
    # The answer's form, as vLLM names it: {"json": schema}, {"json_object": True}, {"regex": pattern},
    # {"choice": texts} or {"grammar": Lark's}
    structured_outputs: Mapping[str, Any] | None = field(default=None, hash=False)
    skip_special_tokens: bool = True  # leave special tokens, such as Mistral's [TOOL_CALLS], out of the text

    def __post_init__(self) -> None:
        self._take_types()
        self._check_filters()
        self._check_penalties()
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise EngineError(f"logprobs is {self.logprobs}; use {_LOGPROBS}")
        if self.prompt_logprobs is not None and not 0 <= self.prompt_logprobs <= MAX_LOGPROBS:
            raise EngineError(f"prompt_logprobs is {self.prompt_logprobs}; use {_LOGPROBS}")
        if self.structured_outputs and (self.min_tokens or self.ignore_eos):
            raise EngineError(
                "an answer of a wanted form ends where that does: leave out min_tokens and ignore_eos with "
                "structured_outputs"
            )
        if min(self.stop_token_ids, default=0) < 0:
            raise EngineError(f"stop_token_ids holds {min(self.stop_token_ids)}; use token ids")

    @property
    def penalizes(self) -> bool:
        """True if logits depend on the tokens before them."""
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    def _take_types(self) -> None:
        """Make every field what its type says, or raise EngineError."""
        taken: dict[str, object] = {
            "stop": texts("stop", self.stop),
            "stop_token_ids": whole_numbers("stop_token_ids", self.stop_token_ids),
            "logit_bias": _biases(self.logit_bias),
            "structured_outputs": structured.checked(self.structured_outputs),
            "ignore_eos": switch("ignore_eos", self.ignore_eos),
            "skip_special_tokens": switch("skip_special_tokens", self.skip_special_tokens),
            "seed": None if self.seed is None else whole("seed", self.seed, "a whole number, or None"),
        }
        for name in ("logprobs", "prompt_logprobs"):
            top = getattr(self, name)
            taken[name] = None if top is None else whole(name, top, _LOGPROBS)
        taken |= {name: whole(name, getattr(self, name)) for name in ("max_tokens", "min_tokens", "top_k")}
        taken |= {name: number(name, getattr(self, name)) for name in _NUMBERS}
        for name, value in taken.items():
            object.__setattr__(self, name, value)

    def _check_filters(self) -> None:
        if self.max_tokens < 1:
            raise EngineError(f"max_tokens is {self.max_tokens}; ask for at least one token")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise EngineError(
                f"min_tokens is {self.min_tokens}; use a number from 0 to max_tokens, {self.max_tokens}"
            )
        low, high = _TEMPERATURES
        if self.temperature != 0 and not low <= self.temperature <= high:
            raise EngineError(
                f"temperature is {self.temperature}; use 0 (greedy) or a number from {low:g} to {high:g}"
            )
        if not _LEAST_TOP_P <= self.top_p <= 1:
            raise EngineError(f"top_p is {self.top_p}; use a number from {_LEAST_TOP_P:g} to 1")
        if not 0 <= self.top_k <= _MAX_TOP_K:
            raise EngineError(f"top_k is {self.top_k}; use 0 (all tokens) or a positive 32-bit number")
        if not 0 <= self.min_p <= 1:
            raise EngineError(f"min_p is {self.min_p}; use a number from 0 to 1")

    def _check_penalties(self) -> None:
        low, high = _REPETITIONS
        if not low <= self.repetition_penalty <= high:
            raise EngineError(
                f"repetition_penalty is {self.repetition_penalty}; use a number from {low:g} to {high:g}, 1 is off"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) <= _MAX_PENALTY:
                raise EngineError(f"{name} is {getattr(self, name)}; use a number from -2 to 2")
        for token, bias in self.logit_bias.items():
            if token < 0:
                raise EngineError(f"logit_bias has the key {token}; use token ids")
            if not abs(bias) <= _MAX_BIAS:
                raise EngineError(f"logit_bias of token {token} is {bias}; use a number from -100 to 100")


def _biases(given: object) -> dict[int, float]:
    """`given` as token ids and numbers; None: none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise EngineError(f"logit_bias is {given!r}; use a dictionary of token ids and numbers")
    return {
        whole("a key of logit_bias", token, "token ids"): number(f"logit_bias of token {token}", bias)
        for token, bias in given.items()
    }


def check_request(
    prompt_ids: Sequence[int], params: SamplingParams, vocabulary: int, max_context: int
) -> None:
    """Raise EngineError for a request that an engine of this vocabulary and context can't serve."""
    if not prompt_ids:
        raise EngineError("the prompt is empty; give it at least one token")
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocabulary:
        raise EngineError(
            f"the prompt holds token ids outside 0..{vocabulary - 1}; use the target's own tokenizer"
        )
    if len(prompt_ids) + params.max_tokens > max_context:
        raise EngineError(
            f"a prompt of {len(prompt_ids)} tokens and max_tokens {params.max_tokens} don't fit this engine's "
            f"{max_context} tokens of context; shorten the prompt, lower max_tokens, or raise the engine's "
            "max_context (or kv_tokens)"
        )


def params_from(given: SamplingParams | None, options: SamplingOptions) -> SamplingParams:
    """The given ones, or those made of the options. Raises EngineError if there are both."""
    if given is None:
        return SamplingParams(**options)
    if not isinstance(given, SamplingParams):
        raise EngineError(f"params is {given!r}; use SamplingParams(...), or its fields as keywords")
    if options:
        raise EngineError(f"there are params, and {', '.join(options)} besides; put all of them into params")
    return given


def params_of_each(
    given: SamplingParams | Sequence[SamplingParams] | None, options: SamplingOptions, prompts: int
) -> list[SamplingParams]:
    """Parameters of each of `prompts` prompts."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [params_from(given, options)] * prompts
    if len(given) != prompts:
        raise EngineError(
            f"there are {prompts} prompts and params for {len(given)}; give one for each, or one for all"
        )
    return [params_from(one, options) for one in given]
