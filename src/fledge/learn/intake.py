"""Conversations on their way to the learning process: a bounded queue, and a thread that sends what is in it.

The engine only puts a finished request's tape into the queue; joining, copying and writing happen in the thread. What
doesn't fit is left out and counted.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple

from fledge.engine.record import Tape
from fledge.learn.wire import send, send_conversation

_LONGEST = 128  # conversations that may wait
_SHARE = 8  # of the ring's bytes that may wait: one in so many


class _Ended(NamedTuple):
    tape: Tape
    token_ids: Sequence[int]
    drafts: tuple[int, int]
    bytes: int


class Intake:
    """Sends conversations, and other messages, down a pipe."""

    def __init__(self, pipe: IO[bytes], memory: int, failed: Callable[[], None]) -> None:
        """`memory`: the ring's bytes. `failed` is called once, from the thread, when the pipe can't be written to."""
        self._pipe, self._limit, self._failed = pipe, memory // _SHARE, failed
        self._queue: queue.Queue[_Ended | Mapping[str, Any] | None] = queue.Queue(_LONGEST)
        self._waiting = 0  # bytes
        self._lock = threading.Lock()
        self.conversations = self.tokens = self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="fledge-learn-intake", daemon=True)
        self._thread.start()

    def put(self, tape: Tape, token_ids: Sequence[int], drafts: tuple[int, int]) -> None:
        """A request has ended. Never waits."""
        size = tape.bytes
        with self._lock:
            fits = self._waiting + size <= self._limit
            if fits:
                self._waiting += size
        try:
            if fits:
                self._queue.put_nowait(_Ended(tape, token_ids, drafts, size))
        except queue.Full:
            fits = False
            with self._lock:
                self._waiting -= size
        self.dropped += not fits

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send something else."""
        self._queue.put(message)

    def close(self) -> None:
        """Send nothing more."""
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        self._queue.put(None)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if not isinstance(item, _Ended):
                    send(self._pipe, item)
                    continue
                done = item.tape.recorded(item.token_ids, item.drafts)
                if done is not None:
                    send_conversation(self._pipe, done)
                    self.conversations += 1
                    self.tokens += len(done.token_ids)
                with self._lock:
                    self._waiting -= item.bytes
        except (OSError, ValueError):  # the process has ended, or the pipe is closed
            self._failed()
