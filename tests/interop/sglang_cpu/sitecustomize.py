"""Lets SGLang 0.5.23 start without CUDA, torchvision and Intel's AMX; none of its files is changed.

    PYTHONPATH=tests/interop/sglang_cpu SGLANG_USE_CPU_ENGINE=1 TRITON_INTERPRET=1 python -m sglang.launch_server ...

torchvision   pictures alone need it: a placeholder, which transformers doesn't see
AMX           SGLang's own override of the platform's facts, for the choice of the attention backend; its models ask the
              processor itself
records       with $FLEDGE_SGLANG_RECORD, a folder: forwards and trees are written there (recorder.py)

Python imports this file at its start. It runs in SGLang's environment and imports nothing of fledge.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def _as_with_amx(module: ModuleType) -> None:
    module.override_platform(has_amx=True).install()


def _recorded(module: ModuleType) -> None:
    import recorder

    recorder.record(module)


AFTER: dict[str, Callable[[ModuleType], None]] = {"sglang.srt.runtime_context": _as_with_amx}
if os.environ.get("FLEDGE_SGLANG_RECORD"):
    models = ("models.llama", "models.llama_eagle3", "speculative.eagle_worker_common")
    AFTER |= {f"sglang.srt.{name}": _recorded for name in models}


class _AnyClass(type):
    """A class whose every attribute is itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Placeholder(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class _Torchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != "torchvision":
            return None
        frame = sys._getframe()
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith("transformers"):
                return None
            frame = frame.f_back
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `AFTER[name]` with a module that has just been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in AFTER:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            AFTER[name](module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.append(_Torchvision())
sys.meta_path.insert(0, _AfterImport())
