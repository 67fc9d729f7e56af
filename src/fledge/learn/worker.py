"""The learning process: takes conversations in, trains when it may, writes the heads that are surely better.

    stdin   ──► reader thread ──► ring ──► step, step, ... measure ──► version on disk ──► a line on stdout

It is nicer than other programs, the first to go where memory runs out, and ends with its server: the end of stdin.
The server stops it (SIGSTOP) while it isn't its turn (`turns.py`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fledge.base.errors import DataError, first_line
from fledge.data.privacy import PrivacyFilter
from fledge.draft import HeadMetadata
from fledge.features.extract import check_finite
from fledge.heads import Head
from fledge.learn.options import LearnOptions
from fledge.learn.private import without_private
from fledge.learn.ring import Ring
from fledge.learn.student import Student, is_likely, surely_worse, with_argmax
from fledge.learn.versions import Card, Versions
from fledge.learn.wire import frames, sample_of
from fledge.target import Target
from fledge.train.compare import TauDifference
from fledge.train.workspace import freed_memory_is_kept, return_unused_memory

_NICE = 5  # a quarter of a core, beside another program
_IDLE_S = 0.2  # between looks at a ring that has nothing new
_LOSS_LIMIT = 3.0  # times the loss's average: an explosion
_SMOOTH = 0.05  # weight of a new loss in it
_WORSE = 3  # measurements in a row in which the candidate is surely worse, after which it begins again
_SETBACKS = 5  # in a row, after which learning stops


def main() -> None:
    """`python -m fledge.learn.worker`: started by the service, which sends the options first."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints doesn't get between the messages
    logging.basicConfig(level=logging.WARNING, format="learning process: %(message)s")
    try:
        Worker(sys.stdin.buffer, out).run()
    except BrokenPipeError:
        pass  # the server has ended
    except MemoryError:
        _say(out, kind="stopped", why="there is no memory left")
    except Exception as error:
        _say(out, kind="stopped", why=first_line(error) or type(error).__name__)


class Worker:
    """The learning process: one thread reads what the server sends, the other trains."""

    def __init__(self, pipe: IO[bytes], out: IO[str]) -> None:
        self._out, self._frames = out, frames(pipe)
        start = next(self._frames).facts
        options, target = start["options"], start["target"]
        _lower_priority()
        self._options = LearnOptions(**options)
        self._target = Target.load(
            target["model"],
            dtype=target["dtype"],
            quantization=target["quantization"],
            feature_layers=target["feature_layers"],
            text=False,
        )
        self._lm_head = self._target.ends.lm_head  # read before anything is taken in
        self._ring = Ring(self._options)
        self._privacy = PrivacyFilter() if self._options.privacy else None
        self._versions = Versions(self._options.folder)
        self._serving: int | None = start["version"]
        head = Head.load(start["head"]) if start["head"] else None
        metadata = HeadMetadata(
            **{**start["metadata"], "feature_layers": tuple(start["metadata"]["feature_layers"])}
        )
        self._student = Student(
            self._target, self._ring, self._options, head, metadata=metadata, turn_ends=start["turn_ends"]
        )
        self._back: tuple[str, int | None] | None = None  # a head to go back to, and its version
        self._loss: float | None = None
        self._worse = self._setbacks = 0
        self._unlikely = 0  # conversations that were left out

    def run(self) -> None:
        """Run until the server ends."""
        threading.Thread(target=self._read, daemon=True).start()
        with freed_memory_is_kept():
            self._train()

    def _train(self) -> None:
        """Step after step; between them no memory is kept, which batches of different lengths would add up to."""
        state = ""
        while True:
            self._obey()
            waits_for = self._student.waits_for
            if (new := f"collecting {waits_for}" if waits_for else "training") != state:
                state = new
                _say(self._out, kind="state", state=state.partition(" ")[0], why=waits_for)
            if waits_for:
                time.sleep(_IDLE_S)
                continue
            self._step()
            return_unused_memory()
            steps, every = self._student.steps, self._options.measure_every
            _say(
                self._out, kind="progress", steps=steps, until_measured=every - steps % every, loss=self._loss
            )
            if steps % every == 0:
                self._measure()
                return_unused_memory()

    def _read(self) -> None:
        """Receive messages from the server; runs in a thread."""
        try:
            for frame in self._frames:
                if frame.facts["kind"] == "back":
                    self._back = frame.facts["head"], frame.facts["version"]
                    continue
                sample = sample_of(frame, self._ring.next_number())
                if self._privacy is not None:
                    sample = without_private(sample, self._target.tokenizer, self._privacy)
                with suppress(DataError):
                    check_finite(sample)
                    sample = with_argmax(sample, self._lm_head)
                    if is_likely(sample):
                        self._ring.add(sample)
                    else:
                        self._unlikely += 1
            os._exit(0)
        except BaseException as error:
            _say(self._out, kind="stopped", why=f"conversations can't be taken in ({error!r:.80})")
            os._exit(1)

    def _obey(self) -> None:
        """Return to the head that the server returned to."""
        back, self._back = self._back, None
        if back is not None:
            head, self._serving = back
            self._student.go_back(Head.load(head))
            self._loss, self._worse = None, 0

    def _step(self) -> None:
        try:
            loss = self._student.step()
        except DataError:  # nothing has been changed
            self._set_back("the gradient isn't finite")
            return
        if loss is None:
            return
        average = loss if self._loss is None else self._loss
        if not math.isfinite(loss) or loss > _LOSS_LIMIT * average + 1:
            self._set_back(f"the loss went from {average:.2f} to {loss:.2f}")
        else:
            self._loss = average + _SMOOTH * (loss - average)

    def _set_back(self, why: str) -> None:
        """Restart from the serving head, with smaller steps."""
        self._setbacks += 1
        if self._setbacks >= _SETBACKS:
            raise DataError(f"{why}, {_SETBACKS} times in a row")
        _say(self._out, kind="setback", why=why)
        self._student.begin_again()
        self._loss, self._worse = None, 0

    def _measure(self) -> None:
        student, measured = self._student, self._student.measure()
        if not measured:
            return
        found, *groups = measured
        worse = surely_worse(groups)
        known = math.isfinite(found.low)
        about = {
            "tau": round(found.tau[1], 4),
            "before": round(found.tau[0], 4),
            "low": round(found.low, 4) if known else None,
            "high": round(found.high, 4) if known else None,
            "conversations": found.conversations,
            "steps": student.steps,
            "tokens": self._ring.tokens_in,
        }
        more = {
            "cpu_seconds": round(time.process_time(), 1),
            "ring_bytes": self._ring.size,
            "loss": self._loss,
            "worse": worse,  # a group of traffic that the candidate is worse for, which keeps it out
            "unlikely": self._unlikely,
        }
        _say(self._out, kind="measured", **about, **more)
        self._worse = self._worse + 1 if found.high < 0 else 0
        if self._worse >= _WORSE:
            self._set_back(f"tau fell from {found.tau[0]:.2f} to {found.tau[1]:.2f}")
        elif found.low > self._options.least_gain and worse is None and self._versions.pinned() is None:
            self._offer(about, found)

    def _offer(self, about: dict[str, Any], found: TauDifference) -> None:
        """Write a version, and tell the server of it."""
        card = Card(number=0, created=0.0, parent=self._serving, **about)
        card = self._versions.add(self._student.candidate(found), card)
        self._student.accept()
        self._serving, self._setbacks = card.number, 0
        _say(self._out, kind="version", number=card.number)


def _lower_priority() -> None:
    """Leave other programs the larger part of a core that both want. The lowest priority would mean never."""
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _say(out: IO[str], **message: Any) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
