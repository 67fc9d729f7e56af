"""A target's folder, checked, with its config and the hash that names it; `sources/` finds the folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fledge.base.errors import TargetError
from fledge.native.build import cache_folder
from fledge.sources.files import weight_files
from fledge.sources.find import DEFAULT_TARGET, find_folder, given_name, named_folder
from fledge.sources.gguf import GgufChecks, UnconvertibleError
from fledge.sources.gguf_header import GgufSizes
from fledge.sources.hub import hub_config
from fledge.target.config import DecoderConfig
from fledge.target.families import SUPPORTED_ARCHITECTURES
from fledge.target.revision import folder_revision
from fledge.target.weights import check_ends


class ResolvedTarget(NamedTuple):
    """A folder that holds config.json, tokenizer and safetensors weights."""

    folder: Path
    revision: str
    name: str
    config: DecoderConfig


def resolve_target(
    spec: str = DEFAULT_TARGET,
    cache_dir: str | Path | None = None,
    refuse: Callable[[GgufSizes], object] | None = None,
) -> ResolvedTarget:
    """Find the target `spec` means; `cache_dir` defaults to $FLEDGE_CACHE or ~/.cache/fledge.

    `refuse` is called with the sizes of a GGUF file that is yet to be converted, and may raise.
    """
    cache = Path(cache_dir) if cache_dir is not None else cache_folder()
    try:
        folder, name = find_folder(spec, cache, GgufChecks(DecoderConfig.from_folder, refuse))
    except UnconvertibleError as error:
        raise TargetError(
            f"{str(error).rstrip('.')}. Supported are GGUF files of {', '.join(SUPPORTED_ARCHITECTURES)}; use one, or "
            "the model's safetensors checkpoint"
        ) from error
    config = DecoderConfig.from_folder(folder)
    if "Eagle" in config.architecture:
        raise TargetError(f"{folder} is a draft head, not a target: name it by --head, and its target here")
    if not weight_files(folder):
        raise TargetError(
            f"{folder} has no complete safetensors weights: download them, or save the model with save_pretrained"
        )
    if config.undecodable:
        check_ends(folder, config)
    return ResolvedTarget(folder, folder_revision(folder, config, cache), name, config)


def config_place(spec: str, cache_dir: str | Path | None = None) -> str:
    """Where the config.json of what `spec` means lies, or its folder; of a hub's model no weights are downloaded."""
    cache = Path(cache_dir) if cache_dir is not None else cache_folder()
    path = Path(spec).expanduser()
    if path.suffix.lower() == ".gguf" or (path.is_dir() and any(path.glob("*.gguf"))):
        return str(find_folder(spec, cache, GgufChecks(DecoderConfig.from_folder))[0])
    if given_name(spec) is None:
        return spec
    return str(named_folder(spec, cache, GgufChecks(DecoderConfig.from_folder), hub_config)[0])
