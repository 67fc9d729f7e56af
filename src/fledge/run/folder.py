"""One run's folder: its recipe, what its stages share, and the record of each finished stage."""

from __future__ import annotations

import json
import os
import posixpath
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import Timeout

from fledge import __version__, bench
from fledge.base import disk, storage
from fledge.base.checksums import unsealed
from fledge.base.errors import RecipeError, StorageError
from fledge.base.fingerprint import Fingerprint
from fledge.base.storage import Manifest, join
from fledge.bench import RELEASED, TRAINED
from fledge.data import PrivacyOptions, PromptOptions
from fledge.data.prompts import target_parts
from fledge.data.ray_map import RayOptions
from fledge.heads import Head
from fledge.heads.checkpoint import CONFIG_NAME, local_url, weight_urls
from fledge.released import head_url, load_head, released_folder
from fledge.run.recipe import RECIPE_NAME, Recipe
from fledge.target import Target
from fledge.train import TrainOptions

DONE_NAME = "done.json"


@dataclass(frozen=True)
class StageResult:
    """A finished stage's result: a line for the console, and figures for the report."""

    line: str
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None  # of all attempts, if the stage knows; None: of this one


@dataclass(frozen=True)
class Record:
    """A finished stage, as stored in `done.json`. `seconds` covers the last attempt; for training, all attempts."""

    stage: str
    digest: str  # of the output's fingerprint
    seconds: float
    line: str
    figures: Mapping[str, float]
    files: Mapping[str, str]  # its files by path in the run, with checksums
    version: str = __version__

    def save(self, folder: str) -> None:
        """Mark the folder as finished."""
        storage.write_sealed(join(folder, DONE_NAME), asdict(self))

    @classmethod
    def load(cls, folder: str) -> Record | None:
        """The record of a finished folder, or None."""
        url = join(folder, DONE_NAME)
        if not storage.exists(url):
            return None
        try:
            return cls(**unsealed(json.loads(storage.read_bytes(url))))
        except (TypeError, ValueError) as error:
            raise StorageError(f"{url} is not a stage's record ({error}); delete it and run again") from error

    def is_whole(self, run_url: str) -> bool:
        """True if all files the stage wrote still exist.

        Raises:
            StorageError: a file differs from what the stage wrote.
        """
        there = {name: join(run_url, name) for name in self.files if storage.exists(join(run_url, name))}
        for name, url in there.items():
            if self.files[name] != file_digest(url):
                raise StorageError(
                    f"{url} is damaged: it isn't what `fledge {self.stage}` left (wrong checksum); put it back from a "
                    "copy, or delete it and run again"
                )
        return len(there) == len(self.files)


@dataclass(eq=False)
class Run:
    """A recipe in a folder. Target and heads are loaded on first use and shared by the stages."""

    recipe: Recipe
    folder: str
    _: KW_ONLY
    command: str = ""  # as typed, for the report
    given_heads: Sequence[str] = ()  # measured instead of the run's own
    ray: RayOptions | None = None  # runs prompts, respond and features; None: this process

    def url(self, *parts: str) -> str:
        """A path in the run folder."""
        return join(self.folder, *parts)

    @cached_property
    def target(self) -> Target:
        """The recipe's target."""
        return self.recipe.target.load()

    def target_parts(self) -> dict[str, Any]:
        """The fields of a fingerprint that identify the target and how it runs."""
        return target_parts(self.target)

    @cached_property
    def prompt_options(self) -> PromptOptions:
        """The recipe's, with everything the benchmark measures on kept out of training."""
        options = self.recipe.prompts
        own = sorted(str(path) for path in (Path(bench.__file__).parent / "prompts").rglob("*.jsonl"))
        files = dict.fromkeys((*options.evaluation_files, *self.recipe.bench.prompts, *own))
        return options.model_copy(update={"evaluation_files": tuple(files)})

    @cached_property
    def privacy(self) -> PrivacyOptions | None:
        """The privacy filter's options, or None if it is off."""
        options = self.recipe.privacy
        foreign = any(source.kind != "self" for source in self.recipe.prompts.sources)
        return options if options.applies(foreign=foreign or bool(self.recipe.prompts.traffic)) else None

    @cached_property
    def train_options(self) -> TrainOptions:
        """The recipe's training options, with `released` or a hub id resolved to the initial head's folder."""
        options = self.recipe.train
        if options.init_head is None:
            return options
        return options.model_copy(update={"init_head": local_url(head_url(self.target, options.init_head))})

    def refuse_wrong_heads(self) -> None:
        """Raise a HeadError for a missing head or one of another target, before any expensive work."""
        if (start := self.train_options.init_head) is not None:
            if _same_folder(start, self.url("head")):
                raise RecipeError(
                    f"train.init_head={start} is where this run puts its own head, and the run could never tell again "
                    "what it began with; name another --run-dir, or move that head away first"
                )
            Head.load(start).check_target(self.target)  # training uses this target's features
        if self.given_heads:
            self.heads()

    @cached_property
    def head_urls(self) -> dict[str, str]:
        """The heads to measure by name: those given, or the run's own and the shipped one, if any."""
        if self.given_heads:
            return {name: local_url(head_url(self.target, name)) for name in self.given_heads}
        shipped = released_folder(self.target)
        return {TRAINED: self.url("head")} | ({RELEASED: shipped} if shipped is not None else {})

    def heads(self) -> dict[str, Head]:
        """The heads to measure, loaded and checked against the target."""
        return {name: load_head(self.target, url) for name, url in self.head_urls.items()}

    def is_given(self, folder: str) -> bool:
        """True if a stage's folder contains shards from outside this run, put there by the user."""
        url = self.url(folder)
        return bool(Manifest.load(url).shards) and Fingerprint.load(url) is None

    def of_earlier_head(self, folder: str) -> bool:
        """True if a stage's folder contains figures of a head that the run's own has replaced."""
        made_from = Fingerprint.load(self.url(folder))
        if made_from is None or not storage.exists(self.url("head", CONFIG_NAME)):
            return False
        measured = made_from.parts.get("head", made_from.parts.get(f"heads.{TRAINED}"))
        return measured is not None and measured != head_digest(self.url("head"))

    def check_exists(self) -> None:
        """Raise a StorageError if the run doesn't exist: a mistyped name must not create a folder."""
        if not storage.exists(self.folder):
            raise StorageError(
                f"there is no run in {self.folder}; check --run-dir{self._neighbours()}, or make one with `fledge run`"
            )

    def _neighbours(self) -> str:
        """The runs beside this folder, in parentheses."""
        path = storage.local_path(self.folder)
        recipes = sorted(path.parent.glob(f"*/{RECIPE_NAME}")) if path else []
        names = [join(posixpath.dirname(self.folder), recipe.parent.name) for recipe in recipes]
        return f" (there are {', '.join(names[:8])})" if names else ""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock a local run folder against a second process; the lock is released however the process ends.

        Object stores have no locks, and a renewable lease can't distinguish a slow owner from a dead one.
        """
        path = storage.local_path(self.folder)
        if path is None:
            yield
            return
        with disk.no_empty_folders(path), self._locked_here(path):
            yield

    @contextmanager
    def _locked_here(self, path: Path) -> Iterator[None]:
        lock, owner = path / ".lock", path / ".owner"
        new = not path.exists()
        try:
            disk.make_folder(path)
            # Without flock, the lock of a dead process is taken over on the second or third attempt, each of which asks
            # a network's file system several times.
            held = disk.file_lock(lock).acquire(timeout=0.5)
        except Timeout as error:
            raise StorageError(
                f"another fledge{_named(owner)} is at work in {self.folder}; wait for it or name another --run-dir, "
                f"or, if it no longer runs, delete {lock}"
            ) from error
        except OSError as error:
            raise StorageError(f"can't use {self.folder}: {error}; name another --run-dir") from error
        with held:
            # In a separate file: without flock, filelock recognises a dead owner by the lock's content.
            with suppress(OSError):  # on a full disk the owner stays unnamed
                owner.write_text(f" (process {os.getpid()} on {socket.gethostname()})")
            try:
                yield
            finally:
                with suppress(OSError):
                    owner.unlink()
                if new and [file.name for file in path.iterdir()] == [lock.name]:
                    lock.unlink()


def _named(owner: Path) -> str:
    """The owner recorded in the file, in parentheses; empty if unreadable."""
    try:
        return owner.read_text(errors="replace")
    except OSError:
        return ""


def _same_folder(one: str, other: str) -> bool:
    here, there = storage.local_path(one), storage.local_path(other)
    return here.resolve() == there.resolve() if here and there else one.rstrip("/") == other.rstrip("/")


def head_digest(url: str) -> str:
    """The checksum of a head's weights; for several files, that of their checksums."""
    digests = [file_digest(file) for file in weight_urls(url)]
    return digests[0] if len(digests) == 1 else storage.sha256("".join(digests).encode())


def file_digest(url: str) -> str:
    """The checksum of a file."""
    return storage.sha256(storage.read_bytes(url))
