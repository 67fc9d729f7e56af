"""A GGUF file as a bf16 safetensors folder, converted once and cached."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import modeling_gguf_pytorch_utils as reading

from fledge.base.errors import TargetError
from fledge.sources.files import file_sha256
from fledge.sources.made_once import made_once

logger = logging.getLogger("fledge.once")

Usable = Callable[[Path], object]

_FORMAT = 2  # part of the folder's name: a change causes a new conversion


class UnconvertibleError(TargetError):
    """The file's content is of another architecture, or contradicts its metadata."""


def converted_folder(file: Path, cache: Path, usable: Usable) -> Path:
    """The cached folder of a GGUF file, created if missing. Two processes don't convert it twice.

    `usable` raises for a folder with an unusable config, which then never enters the cache.
    """
    targets = cache / "targets"
    final = targets / f"{file.stem}-{file_sha256(file, cache)[:16]}-v{_FORMAT}"

    def convert(folder: Path) -> None:
        logger.info("converting %s to bf16 safetensors in %s", file, final)
        _convert(file, folder)
        usable(folder)

    return made_once(final, convert)


def _convert(file: Path, folder: Path) -> None:
    reader = _checked(file)
    options = transformers.GgufConfig(dequantize=True)
    try:
        with _no_progress_bars():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                file.parent,
                gguf_file=file.name,
                quantization_config=options,
                dtype=torch.bfloat16,
                trust_remote_code=False,
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                file.parent, gguf_file=file.name, trust_remote_code=False
            )
    except ImportError as error:
        raise TargetError(
            f"can't read {file}: {error}. Install what is missing with: pip install gguf accelerate"
        ) from error
    except (ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise UnconvertibleError(f"can't convert {file}: {error}") from error
    # Transformers drops tensors it doesn't know, and initialises missing ones.
    loaded = sum({tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}.values())
    held = sum(int(tensor.n_elements) for tensor in reader.tensors)
    if loaded != held:
        raise TargetError(
            f"{file} holds {held:,} weights, and {type(model).__name__} has {loaded:,}: transformers reads "
            f"{reader.fields['general.architecture'].contents()} as another model, without its biases or experts. Use "
            "the model's safetensors checkpoint"
        )
    windows = [
        f.contents() for name, f in reader.fields.items() if name.endswith(".attention.sliding_window")
    ]
    if windows and getattr(model.config, "sliding_window", None) is None:  # transformers drops Phi-3's
        model.config.sliding_window = windows[0] or None
    try:
        with _no_progress_bars():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except Exception as error:  # safetensors reports a full disk as an error type of its own
        if isinstance(error, OSError) or "os error" in str(error):
            raise OSError(str(error)) from error
        raise


def _checked(file: Path) -> Any:
    """A reader of the file. The conversion drops scaled RoPE, which would only show up as garbage in long contexts."""
    try:
        from gguf import GGUFReader  # also imports its writers; only conversions need it

        reader = GGUFReader(file)
    except ImportError as error:
        raise TargetError(
            f"can't read {file}: {error}. Install what is missing with: pip install gguf"
        ) from error
    except (ValueError, OSError, IndexError) as error:
        raise TargetError(f"{file} isn't a whole GGUF file ({error}): download it again") from error
    kinds = [field.contents() for name, field in reader.fields.items() if name.endswith(".rope.scaling.type")]
    if any(kind != "none" for kind in kinds) or any(t.name.startswith("rope_f") for t in reader.tensors):
        raise TargetError(
            f"{file} scales its RoPE, which can't be converted: use the model's safetensors checkpoint"
        )
    return reader


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    bar = reading.tqdm  # its GGUF reader has one that no setting disables
    reading.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reading.tqdm = bar
        if shown:
            transformers.utils.logging.enable_progress_bar()
