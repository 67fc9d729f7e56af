"""A target's files, checked, with its config and the hash that names it; `sources/` finds them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fledge.base.errors import TargetError
from fledge.native.build import cache_folder
from fledge.sources.files import weight_files
from fledge.sources.find import DEFAULT_TARGET, find_model, given_name, named_model
from fledge.sources.gguf import is_gguf
from fledge.sources.hub import hub_config
from fledge.target.config import DecoderConfig
from fledge.target.revision import folder_revision
from fledge.target.weights import check_ends


class ResolvedTarget(NamedTuple):
    """A folder that holds config.json and tokenizer, and safetensors weights if there is no GGUF file."""

    folder: Path
    revision: str
    name: str
    config: DecoderConfig
    file: Path | None = None  # GGUF, of several parts the first

    @property
    def place(self) -> Path:
        """Where the weights are: the file, or the folder. Resolves to the same target."""
        return self.file or self.folder


def resolve_target(spec: str = DEFAULT_TARGET, cache_dir: str | Path | None = None) -> ResolvedTarget:
    """Find the target `spec` means; `cache_dir` defaults to $FLEDGE_CACHE or ~/.cache/fledge."""
    cache = Path(cache_dir) if cache_dir is not None else cache_folder()
    place, name = find_model(spec, cache)
    file = place if is_gguf(place) else None
    folder = place if file is None else _described(file, cache)
    config = DecoderConfig.from_folder(folder)
    if "Eagle" in config.architecture:
        raise TargetError(f"{folder} is a draft head, not a target: name it by --head, and its target here")
    if file is None and not weight_files(folder):
        raise TargetError(
            f"{folder} has no complete safetensors weights: download them, or save the model with save_pretrained"
        )
    if config.undecodable:
        check_ends(file or folder, config)
    return ResolvedTarget(folder, folder_revision(folder, config, cache, file), name, config, file)


def config_place(spec: str, cache_dir: str | Path | None = None) -> str:
    """Where the config.json of what `spec` means lies, or its folder; of a hub's model no weights are downloaded."""
    cache = Path(cache_dir) if cache_dir is not None else cache_folder()
    path = Path(spec).expanduser()
    in_gguf = is_gguf(path) or (path.is_dir() and any(path.glob("*.gguf")))
    if given_name(spec) is None and not in_gguf:
        return spec
    place, _ = find_model(spec, cache) if in_gguf else named_model(spec, hub_config)
    return str(_described(place, cache) if is_gguf(place) else place)


def _described(file: Path, cache: Path) -> Path:
    """The cached folder with what a GGUF file says of its model: config.json and the tokenizer's files."""
    from fledge.target.gguf_config import described_folder  # gguf takes a moment to import

    return described_folder(file, cache)
