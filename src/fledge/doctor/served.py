"""A served engine as seen from outside: its prompts, answers and acceptance, one prompt at a time.

engine       answers from token ids    acceptance of one request
vLLM         POST /v1/completions      counters spec_decode_num_{drafts,accepted_tokens} before and after
SGLang       POST /generate            meta_info: spec_num_correct_drafts, spec_verify_ct
llama.cpp    POST /completion          timings of each streamed token: draft_n, draft_n_accepted, predicted_n

None exposes its draft logits; tau per prompt is what can be compared from outside.
`OPENAI_API_KEY` is sent if it is set.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from fledge.base import llama_server
from fledge.base.errors import EngineError

_SECONDS = 600.0  # for one answer: a first request may compile kernels


class ServedRound(NamedTuple):
    """A verify, or a step without drafts."""

    drafted: int  # tokens
    room: int  # tokens that could have been drafted: one less than the answer still lacked


@dataclass(frozen=True)
class ServedAnswer:
    """One answer of a served engine."""

    token_ids: list[int]  # empty if the engine doesn't return ids
    text: str
    drafts: int  # verifies that checked drafted tokens; 0: none, or unknown
    tau: float  # tokens per verify, bonus token included; 0: unknown
    rounds: tuple[ServedRound, ...] = ()  # empty: unknown
    drafters: str = ""  # what drafts there, by the engine's own names and comma-separated; empty: unknown


class ServedEngine:
    """A running SGLang, vLLM, llama.cpp or fledge server."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        models = self._call("/v1/models")
        try:
            self.model = str(models["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise EngineError(
                f"{self.url} names no model at /v1/models: give an OpenAI-compatible server"
            ) from None
        # fledge's own server chooses how much to draft according to its load.
        owner = models["data"][0].get("owned_by")
        self.plans = owner == "fledge"
        if owner == llama_server.OWNER:
            self.kind = "llama.cpp"
        else:
            self.kind = "sglang" if self._try("/get_model_info") or self._try("/model_info") else "vllm"

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int] | None:
        """The ids the server makes of a conversation; None if it doesn't return them."""
        body = {"model": self.model, "messages": list(messages), "add_generation_prompt": True}
        if self.kind == "llama.cpp":
            text = (self._try("/apply-template", body) or {}).get("prompt")
            body = {"content": text, "add_special": True, "parse_special": True}
            if text is None:
                return None
        reply = self._try("/tokenize", body)
        ids = (reply or {}).get("tokens")
        return [int(i) for i in ids] if isinstance(ids, list) else None

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> ServedAnswer:
        """Continue a prompt greedily."""
        if self.kind == "sglang":
            return self._from_sglang(prompt_ids, max_tokens)
        if self.kind == "llama.cpp":
            return self._from_llama_cpp(prompt_ids, max_tokens)
        drafts, accepted = self._counters()
        body = {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": 0,
            "return_token_ids": True,
        }
        choice = self._call("/v1/completions", body)["choices"][0]
        now_drafts, now_accepted = self._counters()
        count = now_drafts - drafts
        tau = 1 + (now_accepted - accepted) / count if count else 0.0
        return ServedAnswer(list(choice.get("token_ids") or []), str(choice["text"]), count, tau)

    def _from_sglang(self, prompt_ids: Sequence[int], max_tokens: int) -> ServedAnswer:
        body = {
            "input_ids": list(prompt_ids),
            "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0},
        }
        reply = self._call("/generate", body)
        meta = reply.get("meta_info") or {}
        verifies = int(meta.get("spec_verify_ct") or 0)
        correct = meta.get("spec_num_correct_drafts")
        if (
            correct is None
        ):  # before 0.5.23; the answer's first token is the prefill's, and each verify adds its own
            correct = int(meta.get("completion_tokens") or 0) - 1 - verifies
        tau = 1 + max(0, int(correct)) / verifies if verifies else 0.0
        return ServedAnswer(
            [int(i) for i in reply.get("output_ids") or []], str(reply.get("text", "")), verifies, tau
        )

    def _from_llama_cpp(self, prompt_ids: Sequence[int], max_tokens: int) -> ServedAnswer:
        body = llama_server.completion_body(prompt_ids, max_tokens, 0.0)
        body |= {"cache_prompt": False, "stream": True, "timings_per_token": True}
        chunks = self._events(llama_server.ROUTE, body)
        timings = [chunk.get("timings") or {} for chunk in chunks]
        names = ("predicted_n", "draft_n", "draft_n_accepted")
        counts = [_Counts(*(int(t.get(name) or 0) for name in names)) for t in timings]
        written, drafted, accepted = counts[-1]
        rounds = _rounds(counts, max_tokens)
        # The prompt's forward yields the first token. Rounds are missing where half a character was held back, and the
        # answer may have ended within what a verify accepted: the larger number is nearer.
        verifies = max(len(rounds), written - 1 - accepted)
        ids = [int(i) for chunk in chunks for i in chunk.get("tokens") or []]
        return ServedAnswer(
            ids if len(ids) == written else [],
            "".join(str(chunk.get("content", "")) for chunk in chunks),
            verifies if drafted else 0,
            (written - 1) / verifies if drafted else 0.0,
            rounds,
            str((chunks[-1].get("generation_settings") or {}).get("speculative.types", "")),
        )

    def _counters(self) -> tuple[int, int]:
        """Drafts and accepted tokens so far, from the metrics page; zeros without one."""
        try:
            text = self._open("/metrics").decode()
        except EngineError:
            return 0, 0

        def total(name: str) -> int:
            values = re.findall(rf"^[a-z]+:{name}_total(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.MULTILINE)
            return int(sum(map(float, values)))

        return total("spec_decode_num_drafts"), total("spec_decode_num_accepted_tokens")

    def _try(self, path: str, body: Any = None) -> Any:
        try:
            return self._call(path, body)
        except EngineError:
            return None

    def _call(self, path: str, body: Any = None) -> Any:
        try:
            return json.loads(self._open(path, body))
        except ValueError as error:
            raise EngineError(f"{self.url}{path} doesn't answer in JSON: give an engine's address") from error

    def _events(self, path: str, body: Any) -> list[dict[str, Any]]:
        """A streamed answer's events, at least one."""
        lines = self._open(path, body).decode(errors="replace").splitlines()
        try:
            events = [json.loads(line[len("data:") :]) for line in lines if line.startswith("data:")]
        except ValueError:
            events = []
        if not events or "error" in events[-1]:
            raise EngineError(f"{self.url}{path} streams no answer ({lines[-1:]}): see the server's log")
        return events

    def _open(self, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        try:
            request = urllib.request.Request(self.url + path, data=data, headers=headers)
            with urllib.request.urlopen(request, timeout=_SECONDS) as response:
                content: bytes = response.read()
            return content
        except urllib.error.HTTPError as error:
            message = error.read(300).decode(errors="replace")
            raise EngineError(
                f"{self.url}{path} refuses: {error.code} {message}; see the server's log"
            ) from error
        except (OSError, ValueError) as error:
            raise EngineError(f"{self.url}{path} can't be reached ({error}): is the server up?") from error


class _Counts(NamedTuple):
    """llama-server's counts after an event of a streamed answer."""

    written: int
    drafted: int
    accepted: int


def _rounds(counts: Sequence[_Counts], max_tokens: int) -> tuple[ServedRound, ...]:
    """The rounds of an answer whose tokens came one event each. Tokens that came together tell nothing of theirs."""
    rounds, covered = [], 1  # tokens that earlier rounds, or the prompt's forward, account for
    for before, now in pairwise([_Counts(0, 0, 0), *counts]):
        drafted = now.drafted - before.drafted
        if drafted == 0 and now.written <= covered:
            continue
        covered = now.written + now.accepted - before.accepted
        if now.written == before.written + 1:
            rounds.append(ServedRound(drafted, max_tokens - now.written))
    return tuple(rounds)
