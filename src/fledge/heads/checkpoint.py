"""Head files: config.json and weights, or one GGUF file. Written in every form (`forms.py`, `gguf.py`), read from each
(`foreign.py`).

A head trained by fledge has a checksums.json. Others, exported ones included, have none: other tools rewrite them.
"""

from __future__ import annotations

import io
import json
import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fledge.base.checksums import sha256, unsealed
from fledge.base.disk import neighbours
from fledge.base.errors import HeadError, StorageError, TargetError, did_you_mean
from fledge.base.storage import exists, join, read_bytes, remove, write_atomic, write_json, write_sealed
from fledge.draft.description import HeadConfig, HeadWeights
from fledge.draft.provenance import HeadMetadata, HeadParts
from fledge.heads.foreign import canonically_named, flat_config, head_config, head_metadata, head_weights
from fledge.heads.forms import Form, form_config, form_tensors
from fledge.sources.gguf import is_gguf
from fledge.sources.hub import hub_folder

CONFIG_NAME, WEIGHTS_NAME, SUMS_NAME = "config.json", "model.safetensors", "checksums.json"
INDEX_NAME, PICKLE_NAME = "model.safetensors.index.json", "pytorch_model.bin"


def write_head(
    head: HeadParts, url: str, form: Form = "sglang", *, dtype: torch.dtype | None = torch.bfloat16
) -> None:
    """Write a head's folder; the weights are written first, so a folder with a config.json is complete.

    `dtype` None stores the tensors as they are, without loss.
    """
    tensors = form_tensors(head, form, dtype)
    config = form_config(head, form, dtype or head.weights.lm_head.dtype)
    data = safetensors.torch.save(tensors, metadata={"format": "pt"})
    remove(join(url, SUMS_NAME))  # of the previous head
    write_atomic(join(url, WEIGHTS_NAME), data)
    write_json(join(url, CONFIG_NAME), config)


def write_checksums(url: str) -> None:
    """Record checksums that `read_parts` checks; call it after `write_head`."""
    names = (WEIGHTS_NAME, CONFIG_NAME)
    write_sealed(join(url, SUMS_NAME), {name: sha256(read_bytes(join(url, name))) for name in names})


def read_parts(url: str) -> tuple[HeadConfig, HeadWeights, HeadMetadata]:
    """Read a head's config, weights and metadata from a folder, any fsspec URL, or a hub id."""
    url = local_url(url)
    raw, tensors = read_files(url, checked=True)
    named = canonically_named(tensors, url)
    try:
        flat = flat_config(raw, named, url)
        metadata = head_metadata(raw, flat)
    except (TypeError, ValueError, AttributeError) as error:
        raise HeadError(f"{join(url, CONFIG_NAME)} can't be used ({error}): get the head again") from error
    weights = head_weights(named, flat, url)
    return head_config(flat, weights, url), weights, metadata


def read_files(url: str, *, checked: bool = False) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
    """A head's config.json and all its tensors, with the names in the files; `checked`: against their checksums."""
    if is_gguf(Path(url)) and exists(url):
        from fledge.heads.gguf import read_gguf  # gguf takes a moment to import

        return read_gguf(url)
    if not exists(join(url, CONFIG_NAME)):
        if not exists(url):
            raise HeadError(f"no head {url}: there is no such folder{_similar(url)}")
        if Path(url).is_file():
            raise HeadError(f"{url} is a file, and a head is a folder: name {posixpath.dirname(url) or '.'}")
        run_head = join(url, "head")  # as in a run's folder
        suggestion = run_head if exists(join(run_head, CONFIG_NAME)) else "a folder with a trained head"
        raise HeadError(
            f"{url} isn't a draft head, {CONFIG_NAME} is missing: name {suggestion}{_similar(url)}"
        )
    try:
        read = _reader(url) if checked else read_bytes
        return _object(read(join(url, CONFIG_NAME)), join(url, CONFIG_NAME)), _read_tensors(url, read)
    except StorageError as error:
        raise HeadError(f"can't read the head in {url}: {error}") from error


def weight_urls(url: str) -> list[str]:
    """The files with a head's weights: one or several safetensors files, or EAGLE's pickle."""
    if exists(join(url, WEIGHTS_NAME)):
        return [join(url, WEIGHTS_NAME)]
    if exists(join(url, INDEX_NAME)):
        try:
            index = join(url, INDEX_NAME)
            names = set(_object(read_bytes(index), index)["weight_map"].values())
            return [join(url, name) for name in sorted(names)]
        except (LookupError, TypeError, AttributeError) as error:
            raise HeadError(
                f"{join(url, INDEX_NAME)} can't be used ({error!r}): get the head again"
            ) from error
    if exists(join(url, PICKLE_NAME)):
        return [join(url, PICKLE_NAME)]
    raise HeadError(f"{url} isn't a draft head, {WEIGHTS_NAME} is missing: name a folder with a trained head")


def _reader(url: str) -> Callable[[str], bytes]:
    """A reader of the folder's files that checks them against checksums.json, if there is one."""
    place = join(url, SUMS_NAME)
    sums: dict[str, Any] = {}
    if exists(place):
        try:
            sums = unsealed(json.loads(read_bytes(place)))
        except ValueError as error:
            raise HeadError(
                f"{place} is damaged ({error}): get the head again, or delete it to load the head unchecked"
            ) from error

    def read(file: str) -> bytes:
        data = read_bytes(file)
        if sums.get(posixpath.basename(file), "") not in ("", sha256(data)):
            raise HeadError(
                f"{file} is damaged (wrong checksum: {place} records another): get the head again, or, "
                f"if you changed it on purpose, delete {place}"
            )
        return data

    return read


def _object(data: bytes, url: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise HeadError(f"{url} is not valid JSON ({error}): get the head again") from error
    if not isinstance(value, dict):
        raise HeadError(f"{url} is not a JSON object: get the head again")
    return value


def _read_tensors(url: str, read: Callable[[str], bytes]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in weight_urls(url):
        tensors |= (_pickled if file.endswith(PICKLE_NAME) else _safe)(read(file), file)
    return tensors


def _pickled(data: bytes, url: str) -> dict[str, Tensor]:
    """Tensors only, without unpickling code."""
    try:
        tensors = torch.load(io.BytesIO(data), weights_only=True)
        return {str(name): tensor for name, tensor in tensors.items()}
    except Exception as error:  # torch raises various types for a broken or foreign file
        raise HeadError(f"{url} can't be read ({error}): get it again") from error


def _safe(data: bytes, url: str) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data)
    except Exception as error:  # safetensors raises its own type for a truncated or foreign file
        raise HeadError(f"{url} isn't a whole safetensors file ({error}): get it again") from error


def local_url(url: str) -> str:
    """The folder itself, or the local snapshot of a hub id such as org/name."""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", url) and not exists(url):
        try:
            return str(hub_folder(url, [PICKLE_NAME]))
        except TargetError as error:
            raise HeadError(
                f"no head {url!r}: there is no such folder, and {error}{_similar(url)}"
            ) from error
    return url


def _similar(url: str) -> str:
    """Suggestion for a misspelt head: the shipped one, or what lies in the same folder."""
    return did_you_mean(url, ["released"]) or did_you_mean(posixpath.basename(url), neighbours(Path(url)))
