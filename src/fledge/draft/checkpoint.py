"""Head files: config.json beside the weights. Written in every form (`forms.py`), read in every form (`foreign.py`)."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fledge.draft.foreign import canonical_name, flat_config, head_config, head_metadata, head_weights
from fledge.draft.forms import Form, form_config, form_tensors
from fledge.draft.head import Head
from fledge.errors import HeadError, StorageError
from fledge.storage import exists, join, read_bytes, read_json, write_atomic, write_json
from fledge.target.hub import hub_folder

CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
INDEX_NAME, PICKLE_NAME = "model.safetensors.index.json", "pytorch_model.bin"


def write_head(
    head: Head, url: str, form: Form = "sglang", *, dtype: torch.dtype | None = torch.bfloat16
) -> None:
    """Write a head's folder; the weights go first, so that a folder with a config.json is whole.

    `dtype` None keeps the tensors as they are, so that nothing is lost.
    """
    tensors = form_tensors(head, form, dtype)
    config = form_config(head, form, dtype or head.weights.lm_head.dtype)
    write_atomic(join(url, WEIGHTS_NAME), safetensors.torch.save(tensors, metadata={"format": "pt"}))
    write_json(join(url, CONFIG_NAME), config)


def read_head(url: str) -> Head:
    """Read a head from a folder, any fsspec URL, or a hub id."""
    url = local_url(url)
    raw, tensors = read_files(url)
    named = {canonical_name(name): tensor for name, tensor in tensors.items()}
    try:
        flat = flat_config(raw, url)
        metadata = head_metadata(raw, flat)
    except (TypeError, ValueError, AttributeError) as error:
        raise HeadError(f"{join(url, CONFIG_NAME)} can't be used ({error}): get the head again") from error
    weights = head_weights(named, flat, url)
    return Head(head_config(flat, weights, url), weights, metadata)


def read_files(url: str) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
    """A head's config.json and all its tensors, under the names in the files."""
    if not exists(join(url, CONFIG_NAME)):
        own = join(url, "head")  # as a run's folder has it
        wanted = own if exists(join(own, CONFIG_NAME)) else "a folder with a trained head"
        raise HeadError(f"{url} is no draft head, {CONFIG_NAME} is missing: name {wanted}")
    try:
        raw = read_json(join(url, CONFIG_NAME))
        if not isinstance(raw, dict):
            raise HeadError(f"{join(url, CONFIG_NAME)} is not a JSON object: get the head again")
        return raw, _read_tensors(url)
    except StorageError as error:
        raise HeadError(f"can't read the head in {url}: {error}") from error


def weight_urls(url: str) -> list[str]:
    """The files a head's weights are in: one of safetensors, several, or EAGLE's own pickle."""
    if exists(join(url, WEIGHTS_NAME)):
        return [join(url, WEIGHTS_NAME)]
    if exists(join(url, INDEX_NAME)):
        try:
            names = set(read_json(join(url, INDEX_NAME))["weight_map"].values())
            return [join(url, name) for name in sorted(names)]
        except (LookupError, TypeError, AttributeError) as error:
            raise HeadError(
                f"{join(url, INDEX_NAME)} can't be used ({error!r}): get the head again"
            ) from error
    if exists(join(url, PICKLE_NAME)):
        return [join(url, PICKLE_NAME)]
    raise HeadError(f"{url} is no draft head, {WEIGHTS_NAME} is missing: name a folder with a trained head")


def _read_tensors(url: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in weight_urls(url):
        tensors |= _read_pickle(file) if file.endswith(PICKLE_NAME) else _read_safetensors(file)
    return tensors


def _read_pickle(url: str) -> dict[str, Tensor]:
    """As tensors only."""
    try:
        found = torch.load(io.BytesIO(read_bytes(url)), weights_only=True)
        return {str(name): tensor for name, tensor in found.items()}
    except Exception as error:  # torch raises what the broken or foreign file happens to cause
        raise HeadError(f"{url} can't be read ({error}): get it again") from error


def _read_safetensors(url: str) -> dict[str, Tensor]:
    data = read_bytes(url)
    try:
        return safetensors.torch.load(data)
    except Exception as error:  # safetensors raises its own type for a truncated or foreign file
        raise HeadError(f"{url} isn't a whole safetensors file ({error}): get it again") from error


def local_url(url: str) -> str:
    """The folder itself, or the local snapshot of a hub id such as org/name."""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", url) and not exists(url):
        return str(hub_folder(url, [PICKLE_NAME]))
    return url
