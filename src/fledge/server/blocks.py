"""An answer as a list of blocks, whole or as events: what OpenAI's Responses and Anthropic's Messages have in common.

    pieces   reasoning "Hm."    content "Let me "   content "look."    call look '{"a"'   call ': 1}'
    blocks   [reasoning      ]  [text                              ]   [call                        ]
    events   open extend close  open extend         extend      close  open extend        extend close

A whole answer is made of the same events, so a stream adds up to it.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence

from fledge.server.errors import ApiError
from fledge.server.job import Job, deltas
from fledge.server.message import MessageParts, Piece
from fledge.server.render import Json, encode


class BlockRenderer(ABC):
    """One request's answer; a dialect says what its blocks and events are."""

    def __init__(self, prefix: str) -> None:
        """`prefix`: how the answer's id begins."""
        self.id = prefix + uuid.uuid4().hex
        self._blocks: list[Json] = []
        self._kind: str | None = None  # of the block that is open

    def whole(self, jobs: Sequence[Job]) -> Json:
        """The response to a request that doesn't stream."""
        (job,) = jobs
        for _ in self._read(job.answer().parts, last=True):
            pass
        return self._done(job)

    async def events(self, jobs: Sequence[Job]) -> AsyncGenerator[bytes]:
        """A stream's events."""
        (job,) = jobs
        for data in self._begin(job):
            yield self._event(data)
        async for _, delta in deltas(jobs):
            last = delta.completion is not None
            for data in self._read(job.parts(delta.text, last=last), last=last):
                yield self._event(data)
        for data in self._end(job):
            yield self._event(data)

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that fails."""
        return self._event(self._error(error))

    def _event(self, data: Json) -> bytes:
        return f"event: {data['type']}\ndata: ".encode() + encode(data) + b"\n\n"

    def _read(self, parts: MessageParts, *, last: bool) -> Iterator[Json]:
        """Add to the blocks; the events that say so."""
        for piece in parts.pieces:
            if not piece.continues(self._kind):
                yield from self._close_last()
                self._kind = piece.kind
                yield from self._open(piece)
            if piece.text:
                yield from self._extend(piece)
        if last:
            yield from self._close_last()

    def _close_last(self) -> Iterator[Json]:
        if self._kind is not None:
            yield from self._close()
            self._kind = None

    @abstractmethod
    def _begin(self, job: Job) -> Iterator[Json]:
        """A stream's first events."""

    @abstractmethod
    def _open(self, piece: Piece) -> Iterator[Json]:
        """Begin a block."""

    @abstractmethod
    def _extend(self, piece: Piece) -> Iterator[Json]:
        """Add a piece's text to the last block."""

    @abstractmethod
    def _close(self) -> Iterator[Json]:
        """Complete the last block."""

    @abstractmethod
    def _end(self, job: Job) -> Iterator[Json]:
        """A stream's last events."""

    @abstractmethod
    def _done(self, job: Job) -> Json:
        """The complete response."""

    @abstractmethod
    def _error(self, error: ApiError) -> Json:
        """The event that says that the stream has failed."""
