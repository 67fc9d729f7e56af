"""Damage the files of a tiny run one at a time, and see what `fledge run` does: `python -m tests.run.damage [CASES]`.

By default 200 cases, drawn evenly from all.

state      finished               all is there: only the report is made again
           after NAME             stage NAME is the last finished one
           within NAME            stage NAME was stopped halfway
damage     flip, half, empty      a bit of one byte; the first half of the file; nothing of it

A damage may be
named      the error names the file; doing what it says ends with the files of a run that nothing happened to
healed     no error, and the file is as it was
harmless   no error, the file is as it was damaged, and every other file is as it should be: nobody read it
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fledge.base.errors import FledgeError
from fledge.run.folder import Run
from fledge.run.pipeline import run_pipeline
from fledge.run.recipe import load_recipe
from fledge.run.stages import STAGES, Stage
from tests.run.small_run import write_small_recipe
from tests.tiny import save_tiny_target

DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": lambda data, draw: _flipped(data, draw),
    "half": lambda data, draw: data[: len(data) // 2],
    "empty": lambda data, draw: b"",
}
# Where each stage is stopped: at this much of what its progress counts.
_STOPS = {"prompts": 0.5, "respond": 0.45, "features": 0.95, "train": 0.5}
_BESIDE = {
    "train": ("head/",),
    "evaluate": ("evaluation.json",),
    "report": ("data", "report.html", "summary.json"),
}
# Files that hold times: they differ when their stage is run once more.
_TIMED = re.compile(
    r"done\.json|bench/|metrics\.jsonl|events\.out|checkpoint\.safetensors|summary\.json|report\.html"
)
_CREATED = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d \w+")
_ROUNDS = 4  # of advice after one damage


@dataclass(frozen=True)
class Case:
    """One damage."""

    state: str
    file: str
    damage: str

    def __str__(self) -> str:
        return f"{self.state}: {self.damage} {self.file}"


class Workshop:
    """The states of a run, and what a whole run leaves."""

    def __init__(self, recipe: Path, finished: Path, scratch: Path) -> None:
        self._recipe, self._scratch = recipe, scratch
        self._target = Run(load_recipe(str(recipe)), str(finished)).target
        finished = Path(shutil.copytree(finished, scratch / "finished"))
        self._run(finished)  # the page shows the command
        self.states = {"finished": finished}
        for number, stage in enumerate(STAGES[:-1]):
            before = self._without(finished, STAGES[number:], f"before-{stage.name}")
            if stage.name in _STOPS:
                self.states[f"within {stage.name}"] = self._stopped(before, stage)
            if number + 1 < len(STAGES) - 1:
                rest = self._without(finished, STAGES[number + 1 :], f"after-{stage.name}")
                self.states[f"after {stage.name}"] = rest
        self._wanted = _files(finished)

    def cases(self) -> Iterator[Case]:
        """Every damage of every file that the state's last stage left; of the finished run, of all files."""
        for state, folder in self.states.items():
            stage = next((s for s in STAGES if s.name == state.split()[-1]), None)
            for file in sorted(_files(folder)):
                if stage is None or file == "recipe.yaml" or _belongs(file, stage):
                    yield from (Case(state, file, damage) for damage in DAMAGES)

    def outcome(self, case: Case) -> str:
        """Named, healed or harmless. Raises an AssertionError otherwise, and whatever isn't fledge's own error."""
        folder = Path(shutil.copytree(self.states[case.state], self._scratch / "damaged"))
        try:
            path = folder / case.file
            whole = path.read_bytes()
            damaged = DAMAGES[case.damage](whole, random.Random(str(case)))
            path.write_bytes(damaged)
            named = self._follow_advice(folder, path)
            same = path.exists() and path.read_bytes() == damaged != whole
            self._compare(folder, {case.file} if same else set(), retimed=named or case.state != "finished")
            return "named" if named else "harmless" if same else "healed"
        finally:
            shutil.rmtree(folder)

    def _follow_advice(self, folder: Path, damaged: Path) -> bool:
        """Run to the end, doing what errors say; whether there was one."""
        for attempt in range(_ROUNDS):
            try:
                self._run(folder)
                return attempt > 0
            except FledgeError as error:
                message = str(error)
            assert attempt or str(damaged) in message, f"the error doesn't name the file: {message}"
            place = advised_deletion(message)
            assert place is not None, f"no advice that can be followed: {message}"
            assert place.is_relative_to(folder), f"the advice is about something else: {message}"
            assert place.exists(), f"what is to be deleted isn't there: {message}"
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        raise AssertionError(f"the advice leads nowhere: {message}")

    def _run(self, folder: Path) -> None:
        own = folder / "recipe.yaml"
        run = Run(load_recipe(str(own if own.exists() else self._recipe)), str(folder), command="fledge run")
        run.target = self._target
        run_pipeline(run)

    def _compare(self, folder: Path, aside: set[str], *, retimed: bool) -> None:
        found = _files(folder)
        for name in sorted({*found, *self._wanted} - aside):
            if not name.startswith("report/") and not (retimed and _TIMED.search(name)):
                assert name in found, f"{name} is missing, without an error"
                assert name in self._wanted, f"{name} is left over"
                assert found[name] == self._wanted[name], f"{name} differs, without an error"

    def _without(self, run: Path, stages: tuple[Stage, ...], name: str) -> Path:
        folder = Path(shutil.copytree(run, self._scratch / name))
        for file in _files(folder):
            if any(_belongs(file, stage) for stage in stages):
                (folder / file).unlink()
        for stage in stages:
            shutil.rmtree(folder / stage.folder, ignore_errors=True)
        return folder

    def _stopped(self, before: Path, stage: Stage) -> Path:
        run = Run(load_recipe(str(self._recipe)), str(before))
        run.target = self._target
        run.recipe.save(run.url("recipe.yaml"))
        fingerprint = stage.fingerprint(run)
        if not stage.claims:
            fingerprint.claim(run.url(stage.folder))

        def progress(done: float, total: float, note: str) -> None:
            if total and done >= _STOPS[stage.name] * total:
                raise InterruptedError

        try:
            stage.work(run, progress)
        except InterruptedError:
            return before
        raise AssertionError(f"{stage.name} wasn't stopped")


def advised_deletion(message: str) -> Path | None:
    """What an error says should be deleted: a path, or `it`, the first path it names."""
    found = re.search(r"\bdelete (/[^\s;,]+|it\b)", message)
    if found is None:
        return None
    named = found[1] if found[1] != "it" else next(iter(re.findall(r"(/[^\s;,:]+)", message)), None)
    return Path(named) if named else None


def _flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _belongs(file: str, stage: Stage) -> bool:
    return file.startswith((f"{stage.folder}/", *_BESIDE.get(stage.name, ())))


def _files(folder: Path) -> dict[str, bytes]:
    """The run's files by name; the moment a page was made and the run's own folder are left out."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", ".owner"))
    read = {str(path.relative_to(folder)): path.read_bytes().replace(bytes(folder), b"") for path in files}
    return {name: _CREATED.sub(b"", data) for name, data in read.items()}


def main() -> None:
    """Damage, and print what came of it; status 1 if something wasn't as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        recipe = write_small_recipe(scratch / "recipe.yaml", save_tiny_target(scratch / "target"))
        run_pipeline(Run(load_recipe(str(recipe)), str(scratch / "run"), command="fledge run"))
        workshop = Workshop(recipe, scratch / "run", scratch)
        cases = list(workshop.cases())
        random.Random(0).shuffle(cases)
        wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
        found: Counter[str] = Counter()
        start = time.perf_counter()
        for case in cases[:wanted]:
            try:
                found[workshop.outcome(case)] += 1
            except Exception as error:  # whatever a damaged file leads to: it is what is looked for
                found["BAD"] += 1
                print(f"BAD {case}: {type(error).__name__}: {error}", file=sys.stderr)
        print(
            f"{sum(found.values())} damages in {time.perf_counter() - start:.0f} s: {dict(found)}",
            file=sys.stderr,
        )
    sys.exit(1 if found["BAD"] else 0)


if __name__ == "__main__":
    main()
