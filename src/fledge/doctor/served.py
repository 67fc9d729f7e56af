"""A served engine as seen from outside: its prompts, answers and acceptance, one prompt at a time.

engine    answers from token ids    acceptance of one request
vLLM      POST /v1/completions      counters spec_decode_num_{drafts,accepted_tokens} before and after
SGLang    POST /generate            meta_info: spec_num_correct_drafts, spec_verify_ct

Neither exposes its draft logits; tau per prompt is what can be compared from outside.
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
from typing import Any

from fledge.base.errors import EngineError

_SECONDS = 600.0  # for one answer: a first request may compile kernels


@dataclass(frozen=True)
class ServedAnswer:
    """One answer of a served engine."""

    token_ids: list[int]  # empty if the engine doesn't return ids
    text: str
    drafts: int  # verifies that checked drafted tokens; 0: none, or unknown
    tau: float  # tokens per verify, bonus token included; 0: unknown


class ServedEngine:
    """A running SGLang, vLLM or fledge server."""

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
        self.plans = models["data"][0].get("owned_by") == "fledge"
        self.kind = "sglang" if self._try("/get_model_info") or self._try("/model_info") else "vllm"

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int] | None:
        """The ids the server makes of a conversation; None if it doesn't return them."""
        body = {"model": self.model, "messages": list(messages), "add_generation_prompt": True}
        reply = self._try("/tokenize", body)
        ids = (reply or {}).get("tokens")
        return [int(i) for i in ids] if isinstance(ids, list) else None

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> ServedAnswer:
        """Continue a prompt greedily."""
        if self.kind == "sglang":
            return self._from_sglang(prompt_ids, max_tokens)
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
