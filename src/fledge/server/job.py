"""One answer on its way: from the engine's tokens, which come in on the event loop, to text that may be shown.

engine thread --StepResult--> Job.receive()  --Delta--> deltas(jobs)  --> the client, at its own pace
                              detokenise, stops         what came meanwhile is one delta
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fledge.engine import Completion, SamplingParams, StepResult, TokenLogprob, TreeTrace
from fledge.engine.detokenize import Detokenizer, decode
from fledge.server.errors import ApiError
from fledge.server.message import Said
from fledge.server.reader import Reader


@dataclass
class Delta:
    """What is new of an answer since the last delta."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    # Of jobs with a trace: (text, origin) of each token, and each round's tree with its bonus token.
    pieces: list[tuple[str, int]] = field(default_factory=list)
    trees: list[tuple[TreeTrace, int | None]] = field(default_factory=list)
    said: Said = field(default_factory=Said)  # what the text is in a message
    completion: Completion | None = None  # in the last delta

    def __bool__(self) -> bool:
        return bool(self.text or self.token_ids or self.completion)


class Job:
    """One prompt and its answer. Belongs to the event loop; the engine's thread only writes what is marked so."""

    def __init__(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        tokenizer: Any,
        client: str = "",
        speculate: bool = True,
        trace: bool = False,
        echo: str = "",
        continues: bool = False,
        reader: Reader | None = None,
    ) -> None:
        """`echo`: text to put before the answer. `continues`: its text goes on where the prompt's ends.

        `reader`: finds reasoning and calls in it.
        """
        self.prompt_ids = prompt_ids
        self.params = params
        self.client = client
        self.speculate = speculate
        self.trace = trace
        self.echo = echo
        self._continues = continues
        self._reader = reader
        self.request_id: int | None = None  # the engine's; written by its thread
        self.completion: Completion | None = None
        self.error: ApiError | None = None
        self.created = time.perf_counter()
        self.entered = self.created  # when the engine got it; written by its thread
        self.newest: float | None = None  # when its newest token came
        self.text = ""  # all of the answer so far
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        # Of the tokens that `text_offset` has been asked for: their characters, and bytes of an incomplete one.
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special=params.skip_special_tokens)
        self._pending = Delta()
        self.news = asyncio.Event()  # something came; the jobs of one request share it

    @property
    def done(self) -> bool:
        """True once nothing more will come."""
        return self.completion is not None or self.error is not None

    def receive(self, result: StepResult) -> None:
        """Take what a step added."""
        if self.done:
            return
        pending, text = self._pending, self._text(result)
        self.completion = pending.completion = result.completion
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

    def said(self, text: str, *, last: bool) -> Said:
        """The answer's text as parts of a message: the whole text once, or piece by piece."""
        return Said(content=text) if self._reader is None else self._reader.add(text, last=last)

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, as OpenAI says it; None while it goes on."""
        if self.completion is None:
            return None
        called = self._reader is not None and self._reader.has_called
        reason = self.completion.finish_reason
        return "tool_calls" if called and reason == "stop" else reason

    def text_offset(self, raw: bytes) -> int:
        """Where in the text the next token begins; ask for each in turn, with the bytes it adds to the text.

        A token that continues a character begins where the character does.
        """
        begins = self._offset
        self._offset += len(self._decoder.decode(raw))
        return begins

    def _text(self, result: StepResult) -> str:
        """The text that became certain with a step."""
        begin = self._space_between(result.token_ids) if self._continues and not self.token_ids else ""
        if result.text is not None:  # there are stop strings: the engine makes the text itself
            return begin + result.text
        completion, visible = result.completion, result.token_ids
        if completion is not None and completion.finish_reason == "stop":
            visible = visible[:-1]  # the stop token isn't part of the text
        if not self.trace:
            return begin + self._detokenizer.add(visible, last=completion is not None)
        pieces = [self._detokenizer.add([token]) for token in visible]
        pieces[:1] = [begin + piece for piece in pieces[:1]]
        if completion is not None:
            pieces.append(self._detokenizer.add([], last=True))
        self._pending.pieces += zip(pieces, [*result.origins, 0], strict=False)
        return "".join(pieces)

    def _space_between(self, token_ids: Sequence[int]) -> str:
        """The space before the answer, which decoding drops at the beginning of a text in some tokenizers."""
        last, first = self.prompt_ids[-1:], list(token_ids[:1])
        skip = self.params.skip_special_tokens
        before, after, both = (
            decode(self._tokenizer, ids, skip_special=skip) for ids in (last, first, last + first)
        )
        return " " if both == f"{before} {after}" else ""

    def fail(self, error: ApiError) -> None:
        """Nothing more will come; whoever reads gets the error."""
        if not self.done:
            self.error = error
            self.news.set()

    def take(self) -> Delta:
        """What came since the last time."""
        delta, self._pending = self._pending, Delta()
        return delta

    def answer(self) -> Delta:
        """The whole answer as one delta; for answers that weren't read piece by piece."""
        said = self.said(self.text, last=True)
        return Delta(self.text, self.token_ids, self.logprobs, said=said, completion=self.completion)


async def deltas(jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Delta]]:
    """What is new of one request's jobs, as it comes, with the job's number, until all are done.

    If one fails, its ApiError is raised.
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
