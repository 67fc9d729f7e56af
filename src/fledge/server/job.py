"""One answer in progress: from the engine's tokens, which arrive on the event loop, to displayable text.

engine thread --StepResult--> Job.receive()  --Delta--> deltas(jobs)  --> the client, at its own pace
                              detokenise, stops         what arrived in between is one delta
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fledge.engine import Completion, SamplingParams, StepResult, TokenLogprob, TreeTrace
from fledge.engine.detokenize import Detokenizer, decode
from fledge.engine.structured import Follower
from fledge.server.errors import ApiError
from fledge.server.message import MessageParts
from fledge.server.reader import Reader


@dataclass
class Delta:
    """The additions to an answer since the last delta."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    # For jobs with a trace: (text, origin) of each token, who proposed it, and each round's tree with its bonus token.
    pieces: list[tuple[str, int]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    trees: list[tuple[TreeTrace, int | None]] = field(default_factory=list)
    parts: MessageParts = field(default_factory=MessageParts)  # the text as message parts
    completion: Completion | None = None  # in the last delta

    def __bool__(self) -> bool:
        return bool(self.text or self.token_ids or self.completion)


class Job:
    """One prompt and its answer. Belongs to the event loop; the engine's thread writes only the fields marked so."""

    def __init__(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        tokenizer: Any,
        client: str = "",
        speculate: bool = True,
        trace: bool = False,
        record: str | None = None,
        echo: str = "",
        continues: bool = False,
        with_stop: bool = False,
        prompt_only: bool = False,
        grammar: Follower | None = None,
        reader: Reader | None = None,
    ) -> None:
        """`echo`: text to put before the answer. `continues`: the answer's text continues the prompt's.

        `with_stop`: what ends the answer is part of its text. `prompt_only`: the answer has no tokens, though the
        engine makes one. `reader`: finds reasoning and calls in it. `grammar`: of the answer's form; kept so that the
        engine doesn't have to compile it again.
        """
        self.prompt_ids = prompt_ids
        self.params = params
        self.client = client
        self.speculate = speculate
        self.trace = trace
        self.record = record  # whose traffic it is, if the server may learn from it
        self.echo = echo
        self._continues = continues
        self._with_stop = with_stop
        self._prompt_only = prompt_only
        self._grammar = grammar
        self._reader = reader
        self.request_id: int | None = None  # the engine's; written by its thread
        self.completion: Completion | None = None
        self.error: ApiError | None = None
        self.created = time.perf_counter()
        self.entered = self.created  # when the engine received it; written by its thread
        self.newest: float | None = None  # when its newest token arrived
        self.text = ""  # the answer so far
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        # State of `text_offset`: characters of the tokens so far, and bytes of an incomplete one.
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special=params.skip_special_tokens)
        self._pending = Delta()
        self.news = asyncio.Event()  # set on any news; shared by the jobs of one request

    @property
    def done(self) -> bool:
        """True once the answer is complete."""
        return self.completion is not None or self.error is not None

    def receive(self, result: StepResult) -> None:
        """Add a step's result."""
        if self.done:
            return
        if self._prompt_only:
            result = _without_tokens(result)
        pending, text = self._pending, self._text(result)
        self.completion = pending.completion = result.completion
        text += self._stop_text(result.completion)
        pending.text += text
        pending.token_ids += result.token_ids
        self.text += text
        self.token_ids += result.token_ids
        if result.logprobs is not None:
            pending.logprobs += result.logprobs
            self.logprobs += result.logprobs
        if result.tree is not None:
            bonus = result.token_ids[-1] if result.origins and result.origins[-1] == 0 else None
            pending.trees.append((result.tree, bonus))
        self.news.set()

    def parts(self, text: str, *, last: bool) -> MessageParts:
        """Parse the next text of the answer into parts of a message."""
        return _content(text) if self._reader is None else self._reader.add(text, last=last)

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, in OpenAI's terms; None while it is running."""
        if self.completion is None:
            return None
        called = self._reader is not None and self._reader.has_called
        reason = self.completion.finish_reason
        return "tool_calls" if called and reason == "stop" else reason

    def text_offset(self, raw: bytes) -> int:
        """The offset in the text at which the next token begins; call it for each in turn, with the bytes it adds.

        A token that continues a character begins where the character does.
        """
        begins = self._offset
        self._offset += len(self._decoder.decode(raw))
        return begins

    def _text(self, result: StepResult) -> str:
        """The text that a step made final."""
        begin = self._space_between(result.token_ids) if self._continues and not self.token_ids else ""
        if result.text is not None:  # with stop strings, the engine produces the text itself
            return begin + result.text
        completion, visible = result.completion, result.token_ids
        if completion is not None and completion.finish_reason != "length":
            visible = visible[:-1]  # the stop token isn't part of the text
        if not self.trace:
            return begin + self._detokenizer.add(visible, last=completion is not None)
        pieces = [self._detokenizer.add([token]) for token in visible]
        pieces[:1] = [begin + piece for piece in pieces[:1]]
        if completion is not None:
            pieces.append(self._detokenizer.add([], last=True))
        self._pending.pieces += zip(pieces, [*result.origins, 0], strict=False)
        self._pending.sources += [*result.sources, ""][: len(pieces)]
        return "".join(pieces)

    def _stop_text(self, completion: Completion | None) -> str:
        """The text that ended the answer, if it is wanted."""
        stop = completion.stop_reason if completion is not None and self._with_stop else None
        if not isinstance(stop, int):
            return stop or ""
        return decode(self._tokenizer, [stop], skip_special=self.params.skip_special_tokens)

    def _space_between(self, token_ids: Sequence[int]) -> str:
        """The space before the answer, which some tokenizers drop when decoding the beginning of a text."""
        last, first = self.prompt_ids[-1:], list(token_ids[:1])
        skip = self.params.skip_special_tokens
        before, after, both = (
            decode(self._tokenizer, ids, skip_special=skip) for ids in (last, first, last + first)
        )
        return " " if both == f"{before} {after}" else ""

    def fail(self, error: ApiError) -> None:
        """End the job with an error, which its reader gets."""
        if not self.done:
            self.error = error
            self.news.set()

    def take(self) -> Delta:
        """Everything since the last call."""
        delta, self._pending = self._pending, Delta()
        return delta

    def answer(self) -> Delta:
        """The complete answer as one delta, for answers that weren't read piece by piece."""
        done, reader = self.completion, self._reader
        ended = done is not None and done.finish_reason == "stop" and done.stop_reason is None
        parts = _content(self.text) if reader is None else reader.read(self.text, ended=ended)
        return Delta(self.text, self.token_ids, self.logprobs, parts=parts, completion=self.completion)


def _without_tokens(result: StepResult) -> StepResult:
    done = result.completion
    if done is not None:
        done = replace(done, text="", token_ids=[], finish_reason="length", stop_reason=None)
    return StepResult(result.request_id, [], [], done)


def _content(text: str) -> MessageParts:
    parts = MessageParts()
    parts.add("content", text)
    return parts


async def deltas(jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Delta]]:
    """The deltas of one request's jobs as they arrive, each with the job's index, until all are done.

    Raises the ApiError of a job that fails.
    """
    news, unfinished = jobs[0].news, dict(enumerate(jobs))
    while unfinished:
        await news.wait()
        news.clear()
        for index, job in list(unfinished.items()):
            if delta := job.take():
                yield index, delta
            if job.error is not None:
                raise job.error
            if delta.completion is not None:
                del unfinished[index]
