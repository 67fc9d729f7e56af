"""Learning, as the server sees it: a recorder for the engine, a process beside it, and heads that come in.

    engine ──finished──► intake ──► [learning process] ──"version 7"──► load, pack ──► engine.change_head
                                          ▲                                  │
    turns: it is stopped while steps run ─'         live acceptance falls ──► the head before

Nothing here can fail a request: where the process ends, memory or the disk runs out, learning stops with one line in
the log, and serving goes on with the head that it has.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fledge.base.errors import FledgeError, first_line
from fledge.base.options import DraftWeights
from fledge.data.privacy.filter import require_privacy_extra
from fledge.draft import HeadMetadata
from fledge.engine import Engine
from fledge.engine.record import Tape
from fledge.heads import Head, head_runner
from fledge.learn.intake import Intake
from fledge.learn.live import LiveTau
from fledge.learn.options import LearnOptions
from fledge.learn.student import new_head
from fledge.learn.turns import Turns
from fledge.learn.versions import Versions
from fledge.target import Target

logger = logging.getLogger("fledge.learn")

_TOKENS, _STATES = 20_480, 4  # that the ring has room for; hidden states of each, in bf16
_KEEPER_S = 0.02  # between looks at the engine
_STARVED_S, _STARVED = (
    20.0,
    0.3,
)  # of turns after which processor seconds per granted second say that cores are busy
_PIN_S = 2.0  # between looks at what is pinned
_CURVE = 2000  # points kept
_END_S = 5.0


class Learning:
    """Learns from what an engine serves; its recorder.

    learning = Learning(target, LearnOptions(folder="learned"))
    engine = Engine(target, learning.head, recorder=learning)
    learning.start(engine)
    """

    def __init__(
        self,
        target: Target,
        options: LearnOptions,
        head: Head | None = None,
        *,
        draft_weights: DraftWeights | None = None,
    ) -> None:
        """`head`: what serves as long as there is no version in the folder; None: plain decode.

        `draft_weights`: as in `Engine`.
        """
        if options.privacy:
            require_privacy_extra()
        self._weights = draft_weights
        if options.memory_mb is None:
            memory = _TOKENS * _STATES * 2 * target.config.hidden_size
            options = options.changed(memory_mb=memory / 2**20)
        self._target, self._options = target, options
        self._versions = Versions(options.folder)
        self.version = self._versions.to_serve()
        self._given = head
        self.speculates = self.version is not None or head is not None  # a head serves that was trained
        if self.version is not None:
            self.head = self._versions.load(self.version).fitted_to(target)
        elif head is not None:
            self.head = head
        else:  # never better than plain decode, which the planner finds out
            nothing = torch.zeros(target.config.vocab_size, dtype=torch.int64)
            self.head = new_head(target, options, nothing, target.chat.turn_end_ids, HeadMetadata.of(target))
        self._live = LiveTau()
        self._curve: deque[dict[str, Any]] = deque(maxlen=_CURVE)
        self._latest: dict[str, Any] = {}
        self._before: int | None = None  # the version that served before
        self._why: str | None = None  # learning has stopped
        self._started = time.monotonic()
        self.updates = self.swaps = self.rollbacks = 0
        self._engine: Engine | None = None
        self._intake: Intake | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._state, self._waits = "starting", ""  # of the process, as it says
        self._progress: dict[str, Any] = {}
        self._turns = Turns(options.share, self._move)
        self._closing = threading.Event()
        self._lock = threading.RLock()

    def start(self, engine: Engine) -> None:
        """Begin to learn from an engine that was made with `head` and this as its recorder."""
        self._engine, options = engine, self._options
        try:
            Path(options.folder).mkdir(parents=True, exist_ok=True)
            message = self._start_message()
        except (FledgeError, OSError) as error:
            self._stop(f"{options.folder} can't be written ({first_line(error)})")
        if not self._takes_in():
            return
        logger.info(
            "learning from answers in %d MB of memory (--learn-memory-mb); while requests run, training takes %.0f %% "
            "of the time (--learn-share); versions are kept in %s",
            round(options.memory_mb or 0), 100 * options.share, options.folder,
        )  # fmt: skip
        # A process group of its own in our session: Ctrl-C doesn't reach it, and where we are killed the system ends
        # it, stopped or not, because its group is an orphan then.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fledge.learn.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._intake = Intake(self._process.stdin, options.memory, self._not_sent)
        self._intake.send(message)
        threading.Thread(target=self._listen, name="fledge-learn", daemon=True).start()
        threading.Thread(target=self._keep, name="fledge-learn-keeper", daemon=True).start()

    def before_step(self) -> None:
        """Called by the engine on its recorder."""
        if self._process is not None:
            self._turns.before_step()

    def finished(self, tape: Tape, token_ids: Sequence[int]) -> None:
        """Called by the engine on its recorder."""
        if self.speculates:
            self._live.add(tape.accepted, tape.rounds)
        if self._intake is not None and self._why is None and tape.group not in self._options.excluded:
            self._intake.put(tape, token_ids)

    def figures(self) -> dict[str, Any]:
        """Figures for metrics, as JSON; reads no file."""
        intake, latest = self._intake, self._latest
        cpu, granted = self._cpu_seconds(), self._turns.granted
        return {
            "state": "stopped" if self._why else self._state,
            "why": self._why or self._reason(cpu, granted) or None,
            "progress": self._progress,
            "share": self._options.share,
            "granted_seconds": round(granted, 1),
            "cpu_seconds": cpu,
            "version": self.version,
            "seconds": round(time.monotonic() - self._started, 1),
            "tokens": intake.tokens if intake else 0,
            "conversations": intake.conversations if intake else 0,
            "left_out": intake.dropped if intake else 0,
            "updates": self.updates,
            "swaps": self.swaps,
            "rollbacks": self.rollbacks,
            "tau": {
                "live": self._live.tau(),
                "heldout": latest.get("before"),
                "candidate": latest.get("tau"),
            },
            "training": latest,
        }

    def state(self) -> dict[str, Any]:
        """Full state for display, as JSON."""
        return {
            **self.figures(),
            "pinned": self._versions.pinned(),
            "curve": list(self._curve),
            "versions": [asdict(card) for card in self._versions.cards()],
        }

    def _reason(self, cpu: float, granted: float) -> str:
        """Reason why learning waits; empty if it doesn't."""
        if self._state != "training":
            return self._waits
        if granted > _STARVED_S and cpu < _STARVED * granted:
            return f"other programs keep the cores busy: {cpu:.0f} s of processor time in {granted:.0f} s of turns"
        if self._turns.serving:
            share = self._options.share
            return (
                f"requests run, and training gets {100 * share:.0f} % of the time meanwhile (--learn-share)"
            )
        return ""

    def _cpu_seconds(self) -> float:
        """Processor time of the learning process; 0 where the system doesn't say."""
        try:
            assert self._process is not None
            fields = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()
            return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 1)  # utime, stime
        except (AssertionError, OSError, IndexError):
            return float(self._latest.get("cpu_seconds", 0.0))

    def close(self) -> None:
        """Stop learning; the process ends."""
        self._closing.set()
        process = self._process
        if process is None:
            return
        if self._intake is not None:
            self._intake.close()
        process.kill()
        process.wait(_END_S)

    def _takes_in(self) -> bool:
        if self._versions.pinned() is not None:
            logger.info("version %s is pinned, so nothing is learnt", self._versions.pinned())
            self._why = "a version is pinned"
        return self._why is None

    def _start_message(self) -> dict[str, Any]:
        """The first message to the process."""
        options, target, given = self._options, self._target, None
        if self.version is not None:
            given = str(self._versions.path(self.version))
        elif self._given is not None:
            given = str(self._saved(self._given))
        return {
            "kind": "options",
            "options": options.model_dump(),
            "target": {
                "model": str(target.place),
                "dtype": str(target.dtype).removeprefix("torch."),
                "quantization": target.asked_quantization,
                "feature_layers": target.config.chosen_layers,
            },
            "metadata": asdict(HeadMetadata.of(target)),
            "turn_ends": sorted(target.chat.turn_end_ids),
            "head": given,
            "version": self.version,
        }

    def _saved(self, head: Head) -> Path:
        """A folder with the head that the server was given."""
        folder = Path(self._options.folder) / "given"
        head.fitted_to(head.target_it_reads(self._target)).save(str(folder))
        return folder

    def _listen(self) -> None:
        """Do what the process says, in a thread."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self._heard(json.loads(line))
        except Exception as error:
            self._stop(f"a message of the learning process can't be used ({first_line(error)})")
        self._ended()

    def _heard(self, message: dict[str, Any]) -> None:
        kind = message.pop("kind")
        if kind == "state":
            self._enter(message["state"], message["why"])
        elif kind == "progress":
            self._progress, self.updates = message, message["steps"]
        elif kind == "measured":
            now = round(time.monotonic() - self._started, 1)
            logger.info(
                "step %d: tau %s on %d held-out answers, of what serves %s (95 %% interval of the gain %s to %s)",
                message["steps"], message["tau"], message["conversations"], message["before"], message["low"],
                message["high"],
            )  # fmt: skip
            self._latest = {"seconds": now, "version": self.version, **message}
            self._curve.append({**self._latest, "live": self._live.tau()})
        elif kind == "version":
            self._swap(message["number"])
        elif kind == "setback":
            logger.warning("learning begins again from the head that serves: %s", message["why"])
        elif kind == "stopped":
            self._stop(message["why"])

    def _enter(self, state: str, why: str) -> None:
        if state != self._state:
            logger.info("learning: %s%s", state, f", {why}" if why else "")
        self._state, self._waits = state, why
        self._turns.training(state == "training")

    def _swap(self, number: int) -> None:
        """Serve a version from the next round on."""
        assert self._engine is not None
        with self._lock:
            begun = time.monotonic()
            try:
                head = self._versions.load(number)
                self._engine.change_head(head_runner(self._target, head, draft_weights=self._weights))
            except (FledgeError, OSError) as error:
                logger.warning(
                    "version %d can't be served, the head before goes on: %s", number, first_line(error)
                )
                return
            self._before, self.version = self.version, number
            self.speculates = True
            self.swaps += 1
            self._live.swapped()
            latest = self._latest
            logger.info(
                "version %d serves: tau %s on held-out traffic, %s before (95 %% interval of the gain %s to %s), "
                "%s tokens learnt from, loaded in %.0f ms",
                number, latest.get("tau"), latest.get("before"), latest.get("low"), latest.get("high"),
                latest.get("tokens"), 1e3 * (time.monotonic() - begun),
            )  # fmt: skip
            with suppress(FledgeError, OSError):  # older versions that can't be deleted do no harm
                self._versions.prune(self._options.keep, number)

    def _roll_back(self) -> None:
        """The head before serves again."""
        assert self._engine is not None
        with self._lock:
            number, fallen = self._before, self.version
            if fallen is None or (number is None and self._given is None):
                return
            head = self._versions.load(number) if number is not None else self._given
            assert head is not None
            self._engine.change_head(head_runner(self._target, head, draft_weights=self._weights))
            self.version, self._before = number, None
            self.rollbacks += 1
            self._live.swapped(back=True)
            logger.warning(
                "acceptance fell with version %d: %s serves again", fallen, number or "the given head"
            )
            if self._intake is not None:
                folder = self._versions.path(number) if number else Path(self._options.folder) / "given"
                self._intake.send({"kind": "back", "head": str(folder), "version": number})
            try:
                self._versions.mark_rolled_back(fallen)
            except (FledgeError, OSError) as error:
                logger.warning("version %d is served again after a restart: %s", fallen, first_line(error))

    def _keep(self) -> None:
        """Let the process work in pauses; track acceptance and pinned versions. Runs in a thread."""
        engine, looked = self._engine, 0.0
        assert engine is not None
        while not self._closing.wait(_KEEPER_S) and self._why is None:
            now = time.monotonic()
            self._turns.look(engine.busy)
            if now - looked > _PIN_S:
                looked = now
                try:
                    self._look_after()
                except Exception as error:  # such as no memory for the head before
                    self._stop(f"its versions can't be looked after ({first_line(error)})")
        self._turns.end()

    def _look_after(self) -> None:
        with suppress(FledgeError, OSError):
            pinned = self._versions.pinned()
            if pinned is not None and pinned != self.version:
                self._swap(pinned)
            elif pinned is None and self._live.fell():
                self._roll_back()

    def _move(self, running: bool) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)

    def _not_sent(self, error: Exception) -> None:
        if isinstance(error, (OSError, ValueError)):  # the pipe's
            self._ended()
        self._stop(f"conversations can't be sent to its process ({first_line(error)})")

    def _ended(self) -> None:
        """The process has ended, or is about to."""
        if self._closing.is_set() or self._process is None:
            return
        self._turns.end()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.poll()
        self._stop(
            f"its process ended with code {code}" + (", as where memory runs out" if code == -9 else "")
        )

    def _stop(self, why: str) -> None:
        with self._lock:
            if self._why is None and not self._closing.is_set():
                self._why = why
                logger.error("learning stops, serving goes on: %s", why)
                if self._process is not None:
                    self._process.kill()
