"""The metadata of a GGUF file: what it holds, which part of a model it is, and its sizes, before any weight is read.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from fledge.base.errors import TargetError

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_TEMPLATE = "tokenizer.chat_template"
_COMPANIONS = {"eagle3": "an EAGLE-3 draft head", "clip": "a vision or audio projector (mmproj)"}


class GgufSizes(NamedTuple):
    """Target sizes that a draft head's are compared with."""

    vocab_size: int
    hidden_size: int


class GgufHeader:
    """One file's metadata and tensor list. Raises a TargetError for a file that is broken."""

    def __init__(self, file: Path) -> None:
        try:
            from gguf import GGUFReader  # also imports its writers; only GGUF files need it

            self.reader = GGUFReader(file)
        except ImportError as error:
            raise TargetError(
                f"can't read {file}: {error}. Install what is missing with: pip install gguf"
            ) from error
        except (ValueError, OSError, IndexError, KeyError, UnicodeDecodeError) as error:
            with file.open("rb") as stream:
                kind = "isn't a whole GGUF file" if stream.read(4) == b"GGUF" else "is no GGUF file"
            raise TargetError(f"{file} {kind} ({error}): download it again") from error
        self.file = file
        self.architecture = str(self.value("general.architecture", ""))

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    @property
    def sizes(self) -> GgufSizes | None:
        """None if the file has no token embedding, as the later parts of a model have none."""
        for tensor in self.reader.tensors:
            if tensor.name == "token_embd.weight":
                hidden, vocab = (int(size) for size in tensor.shape)
                return GgufSizes(vocab, hidden)
        return None

    @property
    def weights(self) -> int:
        """Numbers in all tensors."""
        return sum(int(tensor.n_elements) for tensor in self.reader.tensors)

    @property
    def templates(self) -> dict[str, str]:
        """Named chat templates, such as `tool_use`, and `default`; empty if there are no named ones."""
        names = self.value(f"{_TEMPLATE}s") or []
        named = {name: self.value(f"{_TEMPLATE}.{name}") for name in names}
        named = {name: text for name, text in named.items() if text}
        return {"default": self.value(_TEMPLATE), **named} if named and self.value(_TEMPLATE) else named

    def refuse_parts_and_companions(self) -> None:
        """Raise a TargetError for a file that isn't a whole model, naming what it is and where the rest is."""
        if part := split_message(self.file, int(self.value("split.count") or 1)):
            raise TargetError(part)
        if what := _COMPANIONS.get(self.architecture):
            raise TargetError(f"{self.file} is {what}, not a model: name the model's own GGUF file")


def split_message(file: Path, count: int) -> str:
    """Remedy for a file that is one of several; empty if it is the only one. `count`: as the file says."""
    match = _PART.fullmatch(file.name)
    if match:
        count = max(count, int(match[3]))
    if count < 2:
        return ""
    if match is None:
        return (
            f"{file} is one of {count} parts of a model, and its name doesn't tell which: join them with "
            "llama-gguf-split --merge FIRST_PART WHOLE.gguf, and name the whole file"
        )
    names = [f"{match[1]}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    missing = [name for name in names if not (file.parent / name).exists()]
    step = f"download {', '.join(missing)}, then join" if missing else "the others are beside it: join"
    return (
        f"{file} is part {int(match[2])} of {count} of a model; {step} all parts with "
        f"llama-gguf-split --merge {names[0]} {match[1]}.gguf, and name that file"
    )


def model_in(files: list[Path], folder: Path) -> Path:
    """The model among a folder's GGUF files, beside its projectors and draft heads.

    Raises a TargetError that names the candidates if there are several, or says that the file is in parts.
    """
    for file in files:
        if (match := _PART.fullmatch(file.name)) and int(match[3]) > 1:
            raise TargetError(split_message(file, int(match[3])))
    if len(files) == 1:
        return files[0]
    models = [file for file in files if GgufHeader(file).architecture not in _COMPANIONS]
    if len(models) == 1:
        return models[0]
    if not models:
        raise TargetError(
            f"{folder} holds companions of a model ({_names(files)}) without the model: download it, too"
        )
    raise TargetError(f"{folder} holds several models: name one of them, {_names(models)}")


def _names(files: list[Path]) -> str:
    return ", ".join(file.name for file in files)
