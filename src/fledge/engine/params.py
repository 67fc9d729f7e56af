"""How one request is decoded: what a caller can ask for, and the check that it makes sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from fledge.errors import EngineError

MAX_LOGPROBS = 20  # most likely tokens reported beside the chosen one
# Beyond these, float32 logits overflow or probabilities vanish; the server's own limits lie within them.
_TEMPERATURES = (1e-4, 1e4)
_LEAST_TOP_P = 1e-6
_REPETITIONS = (0.01, 100.0)
_MAX_TOP_K = 2**31 - 1
_MAX_PENALTY = 2.0
_MAX_BIAS = 100.0


class SamplingOptions(TypedDict, total=False):
    """The keywords of `Engine.generate` and the streams: the fields of `SamplingParams`, which says what they mean."""

    max_tokens: int
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
    stop: str | Sequence[str]


@dataclass(frozen=True)
class SamplingParams:
    """How one request is decoded.

    The steps apply in this order, as in vLLM: logit_bias; repetition, frequency and presence penalties; temperature;
    top-k; top-p; min-p. Bias and penalties count for greedy requests, too.
    """

    max_tokens: int = 128
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
    stop: str | Sequence[str] = ()  # the answer ends before the first of these texts

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", dict(self.logit_bias or {}))
        self._check_filters()
        self._check_penalties()
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise EngineError(
                f"logprobs is {self.logprobs}; use 0 to {MAX_LOGPROBS}, or None to turn them off"
            )
        if not all(isinstance(text, str) and text for text in self.stop):
            raise EngineError("stop holds an empty text; use texts of at least one character")

    @property
    def penalizes(self) -> bool:
        """True if logits depend on the tokens before them."""
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    @property
    def filters(self) -> bool:
        """True if some tokens can't be drawn however they are tossed."""
        return bool(self.top_k or self.top_p < 1 or self.min_p)

    def _check_filters(self) -> None:
        if self.max_tokens < 1:
            raise EngineError(f"max_tokens is {self.max_tokens}; ask for at least one token")
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
            if not (isinstance(token, int) and token >= 0):
                raise EngineError(f"logit_bias has the key {token!r}; use token ids")
            if not abs(bias) <= _MAX_BIAS:
                raise EngineError(f"logit_bias of token {token} is {bias}; use a number from -100 to 100")
