"""Answers from a server: any OpenAI-compatible one that returns generated ids (vLLM, SGLang: `return_token_ids`).

    POST /v1/completions   {"prompt": [ids as serving renders them], "return_token_ids": true, ...}
    POST /completion       of a llama-server (base/llama_server.py)

Sending ids keeps the template in one place. With a server that returns text only, an answer is used if its text,
tokenised again, has the length the server reports; other answers are rejected individually.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, TypeVar

from fledge.base import llama_server
from fledge.base.console import plural
from fledge.base.errors import DataError
from fledge.base.retry import REFUSED_STATUS, TRANSIENT_STATUS
from fledge.data.generation import Answer, AnswerFailed, Generation, Job, TokenRate, keep_full
from fledge.data.options import AnswerServerOptions
from fledge.data.turns import decode_all, encode_plain
from fledge.engine import Completion, CompletionStats
from fledge.engine.phases import PhaseSeconds
from fledge.engine.request import FinishReason
from fledge.target import Target

T = TypeVar("T")

_LARGEST_REPLY = 64 * 2**20  # bytes
_LONGEST_PAUSE_S = 60.0  # seconds, upper limit of the exponential backoff and of a server's Retry-After
_FAILURES_IN_A_ROW = 8  # replies that suggest a broken server rather than an unsuitable prompt
_BROKEN = ("malformed_reply", "wrong_ids", "wrong_prompt_ids", "no_token_ids")  # these do, too
_AGAIN = TRANSIENT_STATUS | {409}


class AnswerServer:
    """One server and the limits on its use. Thread-safe."""

    def __init__(
        self, target: Target, options: AnswerServerOptions, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """Determines which model is served.

        Raises:
            DataError: the server can't be reached, serves several models of which the recipe names none, or the key's
            variable isn't set.
        """
        import httpx2  # of the data extra, as below

        self._target, self._options, self._pause = target, options, pause
        timeout = httpx2.Timeout(options.timeout_s, connect=min(10.0, options.timeout_s))
        url = options.url.rstrip("/").removesuffix("/v1")
        headers = key_headers(options.api_key_env)
        try:
            # The client's default limit is 100 connections: further requests would wait for one and time out.
            limits = httpx2.Limits(
                max_connections=options.concurrency, max_keepalive_connections=options.concurrency
            )
            self._client = httpx2.Client(base_url=url, headers=headers, timeout=timeout, limits=limits)
        except httpx2.InvalidURL as error:
            raise DataError(
                f"respond.server.url: {options.url} isn't a valid address ({error}); correct it"
            ) from error
        self._lock = threading.Lock()
        self._next_slot = 0.0
        self._spent = 0
        self._failures = 0
        self._has_answered = False
        self._given_up = threading.Event()  # for the running requests
        self._is_llama_cpp = False
        self.model = self._served_model(options.model)

    @property
    def concurrency(self) -> int:
        """Number of simultaneous requests."""
        return self._options.concurrency

    def complete(self, generation: Generation) -> Completion:
        """The server's answer.

        Raises:
            AnswerFailed: the server can't answer this prompt, or the answer's ids can't be trusted.
            DataError: the server is unreachable or broken, or the token budget is spent.
        """
        params = generation.params
        if self._is_llama_cpp:
            body = llama_server.completion_body(
                generation.prompt_ids, params.max_tokens, params.temperature, params.top_p, params.seed
            )
            reply = llama_server.as_openai(self._post(llama_server.ROUTE, body))
        else:
            body = {
                "model": self.model,
                "prompt": generation.prompt_ids,
                "max_tokens": params.max_tokens,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "seed": params.seed,
                "return_token_ids": True,
                # Otherwise servers use the checkpoint's generation_config.json or their own defaults.
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
            }
            reply = self._post("/v1/completions", body)
        with self._lock:
            self._spent += _reported_tokens(reply)
        try:
            completion = self._read(generation, reply)
        except AnswerFailed as failed:
            if failed.reason in _BROKEN:
                self._count_failure(failed.reason)
            raise
        with self._lock:
            self._failures, self._has_answered = 0, True
            self._spent += 0 if _reported_tokens(reply) else len(completion.token_ids)
        return completion

    def give_up(self) -> None:
        """Stop retrying the running requests, whose answers are no longer needed; later requests are unaffected."""
        self._given_up.set()
        self._given_up = threading.Event()

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        import httpx2

        given_up, last, server_pause = self._given_up, "", 0.0
        for attempt in range(self._options.retries + 1):
            if attempt:
                pause = max(server_pause, self._options.backoff_s * 2 ** (attempt - 1))
                self._pause(min(_LONGEST_PAUSE_S, pause))
            self._wait_for_slot()
            if given_up.is_set():
                raise AnswerFailed("given_up")
            try:
                status, data, server_pause = self._exchange(path, body)
            except httpx2.HTTPError as error:
                last, server_pause = f"{type(error).__name__} {error}".strip(), 0.0
                continue
            if status in _AGAIN:
                last = f"status {status}"
                continue
            if status != 200:
                # A server that answers other prompts can't take this one: it may be too long.
                if status not in REFUSED_STATUS or not self._has_answered:
                    self._count_failure(f"status {status}")
                raise AnswerFailed("refused_by_server")
            try:
                reply = json.loads(data)
            except ValueError:
                last = "a reply that isn't JSON"
                continue
            return reply
        if last.startswith(("status 5", "a reply")):
            self._count_failure(last)
            raise AnswerFailed("server_error")
        raise self._gone(last, self._options.retries + 1)

    def _exchange(self, path: str, body: dict[str, Any]) -> tuple[int, bytes, float]:
        """Status, body, and the pause in seconds that the server requests; an endless body is aborted."""
        deadline = time.monotonic() + self._options.timeout_s
        data = bytearray()
        with self._client.stream("POST", path, json=body) as response:
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > _LARGEST_REPLY or time.monotonic() > deadline:
                    raise AnswerFailed("endless")
            pause = response.headers.get("Retry-After", "")
            return response.status_code, bytes(data), float(pause) if pause.isdecimal() else 0.0

    def _read(self, generation: Generation, reply: Any) -> Completion:
        try:
            choice = reply["choices"][0]
            text, finish = choice["text"], choice["finish_reason"]
        except (KeyError, IndexError, TypeError) as error:
            raise AnswerFailed("malformed_reply") from error
        if not isinstance(text, str) or not isinstance(finish, str):
            raise AnswerFailed("malformed_reply")
        if finish not in ("stop", "length"):
            raise AnswerFailed(f"finish_{finish}"[:40])
        echoed = choice.get("prompt_token_ids") or reply.get("prompt_token_ids")
        if echoed is not None and echoed != generation.prompt_ids:
            raise AnswerFailed("wrong_prompt_ids")
        reported_ids = choice.get("token_ids")
        ids = (
            self._checked(reported_ids, text)
            if reported_ids is not None
            else self._tokenised(text, _reported_tokens(reply), finish)
        )
        ids = self._ended(ids, finish, choice.get("stop_reason"))
        if not ids or len(ids) > generation.params.max_tokens + 1:
            raise AnswerFailed("wrong_length")
        reason: FinishReason = "stop" if finish == "stop" else "length"
        return Completion(text, ids, generation.prompt_ids, reason, no_stats(len(ids)))

    def _checked(self, ids: Any, text: str) -> list[int]:
        """Ids that are in the vocabulary and decode to the text."""
        size = len(self._target.tokenizer)
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < size for i in ids):
            raise AnswerFailed("wrong_ids")
        ends = self._target.chat.turn_end_ids
        body = ids[:-1] if ids and ids[-1] in ends else ids
        plain = self._target.tokenizer.decode(
            body, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        spelled = {decode_all(self._target, ids), decode_all(self._target, body), plain}
        # A cut inside a character leaves a replacement mark that servers write differently.
        if text.strip().rstrip("\ufffd") not in {one.strip().rstrip("\ufffd") for one in spelled}:
            raise AnswerFailed("wrong_ids")
        return ids

    def _tokenised(self, text: str, count: int, finish: str) -> list[int]:
        """The text's ids, if there are `count` of them as the server reported."""
        if not count:
            raise AnswerFailed("no_token_ids")
        ids = encode_plain(self._target, text)
        lengths = (len(ids), len(ids) + 1) if finish == "stop" else (len(ids),)
        if count not in lengths or decode_all(self._target, ids) != text:
            raise AnswerFailed("no_round_trip")
        return ids

    def _ended(self, ids: list[int], finish: str, stop_reason: Any) -> list[int]:
        """Drop everything after the turn's end; append the end if the server left it out of a finished answer."""
        ends = self._target.chat.turn_end_ids
        for position, token in enumerate(ids):
            if token in ends:
                return ids[: position + 1]
        if finish == "length":
            return ids
        if type(stop_reason) is int and stop_reason in ends:
            return [*ids, stop_reason]
        end = self._target.chat.reply_end_id
        if end is None:
            raise AnswerFailed("no_turn_end")
        return [*ids, end]

    def _wait_for_slot(self) -> None:
        budget, per_second = self._options.token_budget, self._options.requests_per_second
        with self._lock:
            if budget is not None and self._spent >= budget:
                raise DataError(
                    f"the token budget of {budget:,} is spent; finished answers are kept: raise "
                    "respond.server.token_budget and run again to resume"
                )
            if per_second is None:
                return
            now = time.monotonic()
            slot = max(now, self._next_slot)
            self._next_slot = slot + 1 / per_second
        self._pause(max(0.0, slot - now))

    def _count_failure(self, what: str) -> None:
        with self._lock:
            self._failures += 1
            if self._failures >= _FAILURES_IN_A_ROW:
                raise DataError(
                    f"{self._options.url} failed {self._failures} times in a row ({what}); finished answers are kept: "
                    "check that it serves the recipe's target, read its log, and run again to resume"
                )

    def _gone(self, why: str, attempts: int) -> DataError:
        what, advice = "can't be reached", "start the server"
        if why.startswith(("status 4", "ReadTimeout")):
            what = "is too busy"
            advice = "lower respond.server.concurrency, or raise its timeout_s or retries"
        return DataError(
            f"{self._options.url} {what} ({why}, {plural(attempts, 'attempt')}); finished answers "
            f"are kept: {advice}, and run again to resume"
        )

    def _served_model(self, named: str) -> str:
        """The model to ask for, `named` or the only one; also notes whether llama-server serves it."""
        try:
            models = self._models()
        except DataError:
            if named:  # a server needn't list any
                return named
            raise
        if not named and len(models) != 1:
            raise DataError(
                f"{self._options.url} serves {', '.join(models) or 'no model'}; set respond.server.model to one"
            )
        self._is_llama_cpp = llama_server.OWNER in models.values()
        return named or next(iter(models))

    def _models(self) -> dict[str, object]:
        """The listed models, with their owners."""
        import httpx2

        try:
            reply = self._client.get("/v1/models")
            return {str(model["id"]): model.get("owned_by") for model in reply.json()["data"]}
        except httpx2.HTTPError as error:
            raise self._gone(f"{type(error).__name__} {error}", 1) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self._options.url} doesn't list its models (status {reply.status_code}); set respond.server.model, "
                "set a key with respond.server.api_key_env, or correct the URL"
            ) from error


def _reported_tokens(reply: Any) -> int:
    """The number of generated tokens that the server reports; 0 if it doesn't."""
    try:
        count = reply["usage"]["completion_tokens"]
    except (KeyError, TypeError):
        return 0
    return count if type(count) is int else 0


def key_headers(key_variable: str) -> dict[str, str]:
    """The header with the key from the environment variable. Raises a DataError if it holds none."""
    if not key_variable:
        return {}
    key = os.environ.get(key_variable, "").strip()  # files of secrets end with a newline
    if not key:
        raise DataError(
            f"respond.server.api_key_env names {key_variable}, which isn't set; export it, or remove the option"
        )
    if not (key.isascii() and key.isprintable()):
        raise DataError(
            f"respond.server.api_key_env names {key_variable}, which holds characters that no key has; "
            "export only the key"
        )
    return {"Authorization": f"Bearer {key}"}


def run_served(server: AnswerServer, jobs: Iterable[Job[T]], rate: TokenRate) -> Generator[T, None, None]:
    """Results of the jobs in their order, with as many running requests as the server is allowed."""

    def answers(
        running: Collection[Future[Completion]],
    ) -> Iterator[Answer[Future[Completion]]]:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            try:
                completion = future.result()
            except AnswerFailed as failed:
                yield future, failed
            else:
                rate.add(len(completion.token_ids))
                yield future, completion

    def stop(running: Collection[Future[Completion]]) -> None:
        if running:
            server.give_up()

    return keep_full(
        jobs,
        server.concurrency,
        lambda generation: _in_thread(partial(server.complete, generation)),
        answers,
        stop,
    )


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """`work` in a daemon thread, since a request may take many minutes and must not delay the exit."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="respond", daemon=True).start()
    return future


def no_stats(tokens: int) -> CompletionStats:
    """Empty statistics: a server doesn't report how an answer was generated."""
    return CompletionStats(tokens, 0, 1.0, 0.0, 0.0, 0.0, [], 0, [], PhaseSeconds())
