"""The environments with other projects' libraries that `make interop` makes, from the ranges in this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from fledge.base.child import free_port, started

ENVIRONMENTS = Path(__file__).parents[2] / ".venv" / "interop"


def interpreter(name: str) -> str:
    """The Python that has speculators, vllm or sglang: $FLEDGE_..._PYTHON, or that of `make interop`; else skips."""
    variable = f"FLEDGE_{name.upper()}_PYTHON"
    if python := os.environ.get(variable):
        return python
    if not (ENVIRONMENTS / name / ".installed").exists():
        pytest.skip(f"no environment with {name}: make interop, or set {variable}")
    return str(ENVIRONMENTS / name / "bin" / "python")


def llama_cpp(program: str) -> Path:
    """A program of llama.cpp: in the folder $FLEDGE_LLAMA_CPP, or in that of `make interop`; else skips."""
    if folder := os.environ.get("FLEDGE_LLAMA_CPP"):
        return Path(folder) / program
    if not (ENVIRONMENTS / "llama.cpp" / ".installed").exists():
        pytest.skip("no llama.cpp: make interop, or set FLEDGE_LLAMA_CPP to the folder of its programs")
    return ENVIRONMENTS / "llama.cpp" / "bin" / program


def llama_cpp_sources() -> Path:
    """llama.cpp's sources, beside the programs that were built of them; else skips."""
    programs = llama_cpp("llama-server").parent
    for folder in (programs.parent / "sources" / "llama.cpp", programs.parent.parent):
        if (folder / "convert_hf_to_gguf.py").exists():
            return folder
    pytest.skip("llama.cpp's sources aren't beside its programs: make interop")


@contextmanager
def llama_server(model: Path, head: Path | None, options: Sequence[str] = ()) -> Iterator[str]:
    """A running llama-server's URL. `options`: further ones, for a head."""
    port = free_port()
    command = [str(llama_cpp("llama-server")), "-m", str(model), "--port", str(port)]
    command += ["-np", "1", "-c", "4096", "--no-webui"]
    if head is not None:
        command += ["-md", str(head), "--spec-type", "draft-eagle3", "--spec-draft-p-min", "0.0", *options]
    with started(command, name="llama-server", environment={}) as server:
        server.wait_until_ready(f"http://127.0.0.1:{port}/health", 60.0)
        yield f"http://127.0.0.1:{port}"
