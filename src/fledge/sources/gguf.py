"""A GGUF file as a bf16 safetensors folder, converted once and cached."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import modeling_gguf_pytorch_utils as reading

from fledge.base.errors import TargetError
from fledge.sources.files import file_sha256
from fledge.sources.gguf_header import GgufHeader, GgufSizes, split_message
from fledge.sources.made_once import made_once

logger = logging.getLogger("fledge.note")

_FORMAT = 3  # part of the folder's name: a change causes a new conversion


@dataclass(frozen=True)
class GgufChecks:
    """Checks before a file is converted, and of the folder before it enters the cache; each may raise."""

    folder: Callable[[Path], object]
    header: Callable[[GgufSizes], object] | None = None


class UnconvertibleError(TargetError):
    """The file's content is of another architecture, or contradicts its metadata."""


def converted_folder(file: Path, cache: Path, checks: GgufChecks) -> Path:
    """The cached folder of a GGUF file, created if missing. Two processes don't convert it twice."""
    if message := split_message(file, 1):
        raise TargetError(message)
    targets = cache / "targets"
    final = targets / f"{file.stem}-{file_sha256(file, cache)[:16]}-v{_FORMAT}"

    def convert(folder: Path) -> None:
        header = GgufHeader(file)
        _refuse_unusable(header, checks)
        logger.info(
            "converting %s to bf16 safetensors, once and for up to a minute or two a GB: %s become %s in %s",
            file, _size(file.stat().st_size), _size(2 * header.weights), final,
        )  # fmt: skip
        _convert(file, folder)
        checks.folder(folder)

    return made_once(final, convert)


def _convert(file: Path, folder: Path) -> None:
    header = GgufHeader(file)
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
            if header.templates:  # transformers reads the default one alone
                tokenizer.chat_template = header.templates
    except ImportError as error:
        raise TargetError(
            f"can't read {file}: {error}. Install what is missing with: pip install gguf accelerate"
        ) from error
    except (ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise UnconvertibleError(f"can't convert {file}: {error}") from error
    # Transformers drops tensors it doesn't know, and initialises missing ones.
    loaded = sum({tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}.values())
    if loaded != header.weights:
        raise TargetError(
            f"{file} holds {header.weights:,} weights, and {type(model).__name__} has {loaded:,}: transformers reads "
            f"{header.architecture} as another model, without its biases or experts. Use "
            "the model's safetensors checkpoint"
        )
    windows = [
        f.contents() for name, f in header.reader.fields.items() if name.endswith(".attention.sliding_window")
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


def _refuse_unusable(header: GgufHeader, checks: GgufChecks) -> None:
    """Raise for a file that the conversion would get wrong or that isn't wanted, before the minutes it takes."""
    header.refuse_parts_and_companions()
    if checks.header is not None and header.sizes is not None:
        checks.header(header.sizes)
    kinds = [
        field.contents()
        for name, field in header.reader.fields.items()
        if name.endswith(".rope.scaling.type")
    ]
    scaled = any(tensor.name.startswith("rope_f") for tensor in header.reader.tensors)
    if scaled or any(
        kind != "none" for kind in kinds
    ):  # dropped, which would show as garbage in long contexts
        raise TargetError(
            f"{header.file} scales its RoPE, which can't be converted: use the model's safetensors checkpoint"
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


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
