"""Processes that needn't import torch before they begin: they are forked off one that has, and that runs no threads."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess


def preload() -> None:
    """What the process imports that others are forked off; to be called before the first of them."""
    multiprocessing.set_forkserver_preload(["fledge.run.pipeline", "tests.tiny", "pytest"])


def forked(
    work: Callable[..., object], *arguments: object, environment: Mapping[str, str] | None = None
) -> BaseProcess:
    """Start `work` in a process of its own, on one thread."""
    preload()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_begin, args=(work, arguments, dict(environment or {})))
    process.start()
    return process


def _begin(work: Callable[..., object], arguments: tuple[object, ...], environment: dict[str, str]) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ |= {"FLEDGE_THREADS": "1"} | environment
    work(*arguments)
