"""Cases of a check: each is run once, leaves a line in a file, and doesn't end the others if it fails."""

from __future__ import annotations

import gc
import hashlib
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fledge


class OutOfTime(Exception):
    """The rest of a part is left to the next run."""


class Check:
    """Runs cases. `small`: a rehearsal, on whatever device there is."""

    def __init__(self, file: Path, seconds: float, *, small: bool) -> None:
        self.file, self.small = file, small
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self.gpu = self.device.type == "cuda"
        self.failed: list[str] = []
        self.skipped: list[str] = []
        self.part = ""
        self._end = time.monotonic() + seconds
        self._sources = sources_digest()
        self._done = self._read()
        file.parent.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def run(self, name: str, part: Callable[[Check], None]) -> None:
        """All cases of a part, as far as the time goes."""
        self.part = name
        try:
            part(self)
        except OutOfTime:
            self.skipped.append(name)
        except Exception:  # what a part needs for all of its cases
            self._failure("setting up")
        self.tidy()

    def case(self, name: str, work: Callable[[], dict[str, Any]], *, least: float = 10.0) -> None:
        """Run `work` unless an earlier run of the same sources did. Its numbers make the line; `ok` False fails.

        `least`: seconds it may take; OutOfTime if fewer are left.
        """
        if self.done(name):
            return
        if self.left < least and not self.small:
            raise OutOfTime
        begun = time.monotonic()
        try:
            found = {"ok": True, **work()}
        except Exception:
            self._failure(name)
            return
        self._write(name, found, seconds=round(time.monotonic() - begun, 2))
        self.tidy()

    def done(self, name: str) -> bool:
        """Whether a run of these sources has passed this case."""
        return (self.part, name) in self._done

    def tidy(self) -> None:
        """Free what a case has left on the device."""
        gc.collect()
        if self.gpu:
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Until the device has done all that was launched."""
        if self.gpu:
            torch.cuda.synchronize()

    def ms(self, work: Callable[[], object], *, times: int = 20, warm: int = 3) -> float:
        """Milliseconds of a call, launched back to back."""
        for _ in range(warm):
            work()
        self.wait()
        begun = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return 1e3 * (time.perf_counter() - begun) / times

    def _failure(self, name: str) -> None:
        trace = traceback.format_exc()
        print(trace, flush=True)
        self._write(name, {"ok": False, "trace": trace[-3000:]})

    def _write(self, name: str, found: dict[str, Any], **more: Any) -> None:
        line = {"part": self.part, "case": name, "sources": self._sources, **found, **more}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")
        shown = {key: value for key, value in found.items() if key not in ("ok", "trace")}
        print(f"{'ok    ' if found['ok'] else 'FAILED'} {self.part:10} {name}  {shown}", flush=True)
        if found["ok"]:
            self._done.add((self.part, name))
        else:
            self.failed.append(f"{self.part}: {name}")

    def _read(self) -> set[tuple[str, str]]:
        if not self.file.exists():
            return set()
        lines = [json.loads(line) for line in self.file.read_text("utf-8").splitlines()]
        return {
            (line["part"], line["case"])
            for line in lines
            if line.get("sources") == self._sources and line["ok"]
        }


def sources_digest() -> str:
    """A hash of fledge's sources: what another version did isn't done."""
    root = Path(fledge.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
