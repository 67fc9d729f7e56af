"""A model in GGUF: in one file or in parts, beside its companions, and what of a folder it is."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from fledge.base.errors import TargetError
from fledge.sources.gguf_header import GgufHeader

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_COMPANIONS = {"eagle3": "an EAGLE-3 draft head", "clip": "a vision or audio projector (mmproj)"}


def is_gguf(path: Path) -> bool:
    """True for a GGUF file's name; a folder of safetensors has none."""
    return path.suffix.lower() == ".gguf"


def open_gguf(file: Path) -> GgufHeader:
    """A model's metadata, with the tensors of all its parts; `file` is any of them.

    Raises a TargetError for a companion of a model, a missing part or a broken file.
    """
    first, *others = parts(file)
    header = GgufHeader(first)
    if what := _COMPANIONS.get(header.architecture):
        raise TargetError(f"{file} is {what}, not a model: name the model's own GGUF file")
    count = int(header.metadata.get("split.count") or 1)
    if count != len(others) + 1:
        raise TargetError(
            f"{file} is one of {count} parts of a model, which its name doesn't tell: give the parts their names back, "
            f"NAME-00001-of-{count:05d}.gguf and so on"
        )
    for other in map(GgufHeader, others):
        header.tensors.update(other.tensors)
        header.maps += other.maps
        header.digest = hashlib.sha256(f"{header.digest}{other.digest}".encode()).hexdigest()
    return header


def parts(file: Path) -> list[Path]:
    """The files of a model, `file` among them, as its name tells. Raises a TargetError if one is missing."""
    match = _PART.fullmatch(file.name)
    if match is None:
        return [file]
    count = int(match[3])
    files = [file.with_name(f"{match[1]}-{n:05d}-of-{match[3]}{file.suffix}") for n in range(1, count + 1)]
    missing = [part.name for part in files if not part.exists()]
    if missing:
        raise TargetError(
            f"{file} is one of {count} parts of a model, and {', '.join(missing)} is missing beside it: download "
            "every part"
        )
    return files


def model_name(file: Path) -> str:
    """The file's name without its ending, and without the number of a part."""
    match = _PART.fullmatch(file.name)
    return match[1] if match else file.stem


def model_in(files: list[Path], folder: Path) -> Path:
    """The model among a folder's GGUF files, beside its projectors and draft heads; of one in parts the first.

    Raises a TargetError that names the candidates if there are several.
    """
    models = sorted({parts(file)[0] for file in files})
    if len(models) > 1:
        models = [file for file in models if GgufHeader(file).architecture not in _COMPANIONS]
    if len(models) == 1:
        return models[0]
    if not models:
        raise TargetError(
            f"{folder} holds companions of a model ({_names(files)}) without the model: download it, too"
        )
    raise TargetError(f"{folder} holds several models: name one of them, {_names(models)}")


def _names(files: list[Path]) -> str:
    return ", ".join(file.name for file in files)
