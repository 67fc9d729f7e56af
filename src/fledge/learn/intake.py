"""Conversations on their way to the learning process: a queue, and a thread that sends what is in it.

The engine only puts a finished request's tape into the queue; joining, copying and writing happen in the thread. As
long as the process is stopped nothing leaves the queue, so conversations that don't fit are left out and counted; no
one ever waits.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple

from fledge.engine.record import Tape
from fledge.learn.wire import send, send_conversation

_LONGEST = 128  # conversations that may wait
_SHARE = 8  # one in so many of the ring's bytes may wait


class _Ended(NamedTuple):
    tape: Tape
    token_ids: Sequence[int]
    bytes: int


class Intake:
    """Sends conversations, and other messages, down a pipe."""

    def __init__(self, pipe: IO[bytes], memory: int, failed: Callable[[Exception], None]) -> None:
        """`memory`: the ring's bytes. `failed` is called once, from the thread, with what ended it."""
        self._pipe, self._limit, self._failed = pipe, memory // _SHARE, failed
        self._queue: queue.SimpleQueue[_Ended | Mapping[str, Any] | None] = queue.SimpleQueue()
        self._waiting = 0  # bytes
        self._lock = threading.Lock()
        self.conversations = self.tokens = self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="fledge-learn-intake", daemon=True)
        self._thread.start()

    def put(self, tape: Tape, token_ids: Sequence[int]) -> None:
        """A request has ended."""
        size = tape.bytes
        with self._lock:
            fits = self._waiting + size <= self._limit and self._queue.qsize() < _LONGEST
            self._waiting += size if fits else 0
        if fits:
            self._queue.put(_Ended(tape, token_ids, size))
        self.dropped += not fits

    def send(self, message: Mapping[str, Any]) -> None:
        """Send something else."""
        self._queue.put(message)

    def close(self) -> None:
        """Send nothing more."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(None)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if not isinstance(item, _Ended):
                    send(self._pipe, item)
                    continue
                done = item.tape.recorded(item.token_ids)
                if done is not None:
                    send_conversation(self._pipe, done)
                    self.conversations += 1
                    self.tokens += len(done.token_ids)
                with self._lock:
                    self._waiting -= item.bytes
        except Exception as error:  # the process has ended, or there is no memory to join states in
            self._failed(error)
