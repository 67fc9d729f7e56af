"""A Llama with random weights: a BF16 GGUF file, and a folder of safetensors with the same weights.

python -m benchmarks.made_llama FOLDER [--layers 16] [--quantize PROGRAM --formats Q4_K_M Q8_0]

The layers have Llama-3.2-1B's shapes, the vocabulary is SmolLM2's: 16 of them are 1.07 B parameters. `--quantize` is
llama.cpp's `llama-quantize`. Speed and memory don't depend on the weights; the text is noise.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter

from benchmarks.expanded import write_expanded
from fledge.heads.gguf import copy_tokenizer
from fledge.sources.find import DEFAULT_TARGET
from fledge.target import resolve_target
from tests.tiny import TinyShape

SHAPE = TinyShape(
    layers=16, hidden=2048, intermediate=8192, heads=32, kv_heads=8, head_dim=64, positions=131072
)
BF16, F32 = GGMLQuantizationType.BF16, GGMLQuantizationType.F32
_THETA, _EPS = 500000.0, 1e-5


def write_llama(file: Path, shape: TinyShape) -> Path:
    """Write the model as BF16 GGUF, with the default target's tokenizer; one tensor at a time is in memory."""
    default = resolve_target(DEFAULT_TARGET)
    assert default.file is not None
    vocabulary = default.config.vocab_size
    writer = GGUFWriter(file, "llama")
    writer.add_name(file.stem)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(_EPS)
    writer.add_rope_freq_base(_THETA)
    writer.add_vocab_size(vocabulary)
    copy_tokenizer(default.file, writer)
    shapes = dict(_shapes(shape, vocabulary))
    for name, sizes in shapes.items():
        kind, size = (BF16, 2) if len(sizes) > 1 else (F32, 4)
        writer.add_tensor_info(name, sizes, np.dtype(np.uint16), math.prod(sizes) * size, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, sizes in shapes.items():
        writer.write_tensor_data(_values(name, sizes))
    writer.close()
    return file


def _shapes(shape: TinyShape, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = shape.hidden, shape.intermediate
    heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (vocabulary, hidden)
    for layer in range(shape.layers):
        for name, sizes in {
            "attn_norm": (hidden,),
            "attn_q": (heads, hidden),
            "attn_k": (kv_heads, hidden),
            "attn_v": (kv_heads, hidden),
            "attn_output": (hidden, heads),
            "ffn_norm": (hidden,),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }.items():
            yield f"blk.{layer}.{name}.weight", sizes
    yield "output_norm.weight", (hidden,)


def _values(name: str, sizes: tuple[int, ...]) -> np.ndarray:
    """The tensor of that name, the same each time."""
    if len(sizes) == 1:
        return np.ones(sizes, np.float32)
    drawn = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    values = torch.empty(sizes, dtype=torch.bfloat16).normal_(std=0.02, generator=drawn)
    return values.view(torch.int16).numpy()


def main() -> None:
    """Write them and name them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.made_llama", description=__doc__)
    parser.add_argument("folder", type=Path, help="where they go")
    parser.add_argument("--layers", type=int, default=SHAPE.layers)
    parser.add_argument("--quantize", help="llama.cpp's llama-quantize, for the formats")
    parser.add_argument("--formats", nargs="+", default=["Q4_K_M"])
    asked = parser.parse_args()
    shape = replace(SHAPE, layers=asked.layers)
    asked.folder.mkdir(parents=True, exist_ok=True)
    file = write_llama(asked.folder / f"made-{shape.layers}-BF16.gguf", shape)
    print(file, flush=True)
    folder = asked.folder / f"made-{shape.layers}"
    write_expanded(resolve_target(str(file)), folder)
    print(folder, flush=True)
    for form in asked.formats if asked.quantize else ():
        quantised = asked.folder / f"made-{shape.layers}-{form}.gguf"
        subprocess.run([asked.quantize, str(file), str(quantised), form], check=True)
        print(quantised, flush=True)


if __name__ == "__main__":
    main()
