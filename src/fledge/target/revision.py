"""A target's revision: one hash over what its outputs depend on, the same however the files were written.

Shard boundaries, key order, file metadata and the version that saved them don't count; sizes, vocabulary, template
and every weight do. Reading all weights takes seconds for large targets, so the result is kept in the cache
beside the sizes and times of the files it was made from.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import torch

from fledge.sources.files import cached_digest, weight_files
from fledge.sources.gguf import open_gguf, parts
from fledge.target import families
from fledge.target.config import DecoderConfig
from fledge.target.tensors import StoredTensors

# Of a Family, what changes the weights that a decoder computes with and isn't in its config.
_READING = ("interleaved_rope", "norm_adds_one", "qk_norm_weights", "tensor_names")
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


def folder_revision(folder: Path, config: DecoderConfig, cache: Path, file: Path | None = None) -> str:
    """The revision of the target in `folder`, from the cache when its files are unchanged.

    `file`: the GGUF file with the weights, of several parts the first; None: the folder has them.
    """
    weights = weight_files(folder) if file is None else parts(file)
    files = [folder / name for name in _TEXT_FILES if (folder / name).exists()] + weights
    shape = json.dumps([_shape(config), _reading(config)], sort_keys=True)
    return cached_digest(files, cache, lambda: _compute(folder, config, file), also=shape)


def _compute(folder: Path, config: DecoderConfig, file: Path | None) -> str:
    digest = hashlib.sha256()
    texts = [_shape(config), _tokenizer_parts(folder), *_reading(config)]
    digest.update(json.dumps(texts, sort_keys=True).encode())
    if file is None:
        _add_safetensors(digest, folder)
    else:
        _add_gguf(digest, file)
    return digest.hexdigest()


def _add_gguf(digest: hashlib._Hash, file: Path) -> None:
    """Raw rows: another quantisation of the same weights is another target."""
    from fledge.target.gguf_tensors import raw_rows  # gguf takes a moment to import

    header = open_gguf(file)
    for name, tensor in sorted(header.tensors.items()):
        part = raw_rows(name, tensor)
        digest.update(f"{name} {part.format} {tensor.shape}".encode())
        digest.update(part.rows.view(-1).view(torch.uint8).numpy().data)
        header.release()


def _add_safetensors(digest: hashlib._Hash, folder: Path) -> None:
    tensors = StoredTensors(weight_files(folder))
    for name in sorted(tensors.names):
        tensor = tensors.read(name)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        tensors.release()


def _shape(config: DecoderConfig) -> dict[str, Any]:
    """All fields that differ from their default: a field added later leaves other targets' revisions as they are."""
    shape = asdict(config)
    for name in ("undecodable", "own_positions", "chosen_layers", "mixture", "latent_attention"):
        shape.pop(name)  # unsupported, unused or user-given fields, and those that only size a new head
    later = {field.name: field.default for field in fields(config) if field.default is not MISSING}
    return {name: shape[name] for name in shape if name not in later or shape[name] != later[name]}


def _reading(config: DecoderConfig) -> list[dict[str, Any]]:
    """Differences from Llama in how the architecture's tensors are read; empty if there are none."""
    family = families.find(config.architecture)
    switches = {name: getattr(family, name) for name in _READING}
    other = {name: value for name, value in switches.items() if value != getattr(families.Family, name, {})}
    return [other] if other else []


def _tokenizer_parts(folder: Path) -> dict[str, Any]:
    """Parts of the tokenizer that determine how text becomes ids."""
    parts: dict[str, Any] = {"template": _read_json(folder / "tokenizer_config.json").get("chat_template")}
    if (folder / "chat_template.jinja").exists():
        parts["template"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if not parts["template"]:
        parts["template"] = _read_json(folder / "chat_template.json").get("chat_template")
    tokenizer = _read_json(folder / "tokenizer.json")
    if tokenizer:
        model = tokenizer.get("model") or {}
        merges = model.get("merges") or []
        parts["vocab"] = model.get("vocab")
        parts["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
        parts["added"] = [[t.get("id"), t.get("content")] for t in tokenizer.get("added_tokens") or []]
    elif (folder / "tokenizer.model").exists():
        parts["model"] = hashlib.sha256((folder / "tokenizer.model").read_bytes()).hexdigest()
    return parts


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
