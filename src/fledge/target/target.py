"""The target: its files, tokenizer, weights and decoder in one object."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from fledge.base.errors import TargetError
from fledge.native.build import native_setting
from fledge.sources.find import DEFAULT_TARGET
from fledge.sources.gguf import open_gguf
from fledge.target.batch import Decoder
from fledge.target.chat import ChatTemplate
from fledge.target.config import DecoderConfig
from fledge.target.decoder import TorchDecoder
from fledge.target.identity import template_hash, vocabulary_hash
from fledge.target.matrix import Matrix, Quantization
from fledge.target.resolve import ResolvedTarget, resolve_target
from fledge.target.source import open_source
from fledge.target.tensors import TensorSource
from fledge.target.weights import (
    DecoderWeights,
    EndWeights,
    load_ends,
    load_weights,
    read_weights,
)

logger = logging.getLogger("fledge")

Backend = Literal["auto", "native", "torch"]
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


class Target:
    """An LLM to accelerate. `Target.load` makes one; weights and decoder come on first use."""

    def __init__(
        self,
        resolved: ResolvedTarget,
        dtype: torch.dtype,
        device: torch.device,
        backend: Backend,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        quantization: Quantization | None = None,
    ) -> None:
        self.folder: Path = resolved.folder  # has config.json and the tokenizer
        self.revision: str = _revision(resolved, quantization)
        self.name: str = resolved.name
        self.config: DecoderConfig = resolved.config
        self._resolved, self._template_kwargs = resolved, chat_template_kwargs
        self.asked_quantization = quantization
        self.dtype = dtype
        self.device = device
        self._backend: Backend = backend

    @classmethod
    def load(
        cls,
        spec: str = DEFAULT_TARGET,
        *,
        dtype: str = "bfloat16",
        device: str = "cpu",
        cache_dir: str | Path | None = None,
        backend: Backend = "auto",
        feature_layers: Sequence[int] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        quantization: Quantization | None = None,
        text: bool = True,
    ) -> Target:
        """Load a local folder, a hub id, a GGUF file or an installed package that holds one.

        Args:
            spec: what to load; see `fledge.sources.find`.
            dtype: "bfloat16", "float32" or "float16", what the decoder computes in.
            device: a torch device; under torchrun "cuda" is the GPU of the process' local rank.
            cache_dir: where what is read of files is kept; default $FLEDGE_CACHE or ~/.cache/fledge.
            backend: "native" (the CPU kernels), "torch", or "auto": native where it runs.
            feature_layers: the three layers whose outputs a head learns from, counted from 0; default: those that
                every engine takes where a head names none.
            chat_template_kwargs: what the chat template itself asks for, such as Qwen3's {"enable_thinking": False}.
            quantization: "q8_0" or "q4_0" makes matrices smaller while they are read, "none" expands those of a GGUF
                file to `dtype`; default: as they are in their file.
            text: False loads the tokenizer on first use: it takes 100 MB.
        """
        if dtype not in _DTYPES:
            raise TargetError(f"dtype {dtype!r} isn't known: use one of {', '.join(_DTYPES)}")
        if backend not in get_args(Backend):
            raise TargetError(f"backend {backend!r} isn't known: use one of {', '.join(get_args(Backend))}")
        if quantization not in (None, *get_args(Quantization)):
            raise TargetError(
                f"quantization {quantization!r} isn't known: use one of {', '.join(get_args(Quantization))}"
            )
        resolved = resolve_target(str(spec), cache_dir)
        target = cls(
            resolved, _DTYPES[dtype], _usable_device(device), backend, chat_template_kwargs, quantization
        )
        if text:
            target.chat  # noqa: B018  # raises for a tokenizer or template that can't be used
        return target if feature_layers is None else target.with_feature_layers(feature_layers)

    def with_feature_layers(self, layers: Sequence[int]) -> Target:
        """This target with features of other layers, counted by output; what it has loaded is shared.

        Raises a TargetError for layers it hasn't.
        """
        config = self.config.with_feature_layers(layers)
        if config.feature_layers == self.config.feature_layers:
            return self
        other = copy.copy(self)
        other.config = config
        other.__dict__.pop("decoder", None)  # which gives the layers it was made with
        return other

    @property
    def place(self) -> Path:
        """Where the weights are, a file or a folder; `Target.load` makes the same target of it."""
        return self._resolved.place

    @cached_property
    def source(self) -> TensorSource:
        """Its tensors, read as they are used."""
        return open_source(self.place, self.config, self.dtype, self.device, self.asked_quantization)

    @property
    def memory_bytes(self) -> float:
        """Memory that its weights take, known before they are read: as the CPU kernels pack them, else in `dtype`."""
        from fledge.target.cpu import native_available  # may compile its kernels

        c = self.config
        if self._backend == "torch" or native_available(c, self.dtype, self.device):
            return self.dtype.itemsize * c.weight_count
        return self.source.packed_bytes(c.weight_count, c.vocab_size * c.hidden_size)

    @cached_property
    def quantization(self) -> str | None:
        """The form of its matrices, for reports: "q8_0", "Q4_K_M", or None where they are plain numbers."""
        if self.asked_quantization is not None:
            return None if self.asked_quantization == "none" else self.asked_quantization
        if self._resolved.file is None:
            return None
        from fledge.target.gguf_tensors import quantization_name  # gguf takes a moment to import

        return quantization_name(open_gguf(self._resolved.file))

    @property
    def checkpoint(self) -> Path:
        """The folder of safetensors, for other engines. Raises a TargetError for a GGUF file."""
        if self._resolved.file is not None:
            raise TargetError(
                f"{self._resolved.file} is a GGUF file, and this needs the model's safetensors checkpoint: name its "
                "folder or hub id as the target"
            )
        return self.folder

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return _load_tokenizer(self._resolved)

    @cached_property
    def chat(self) -> ChatTemplate:
        """Conversations as token ids."""
        ends = _end_token_ids(self.folder, self.config.vocab_size)
        return ChatTemplate(self.tokenizer, ends, self._template_kwargs)

    @cached_property
    def vocabulary_hash(self) -> str:
        """Hash of the tokens: the same for every quantisation and most fine-tunes of a model."""
        return vocabulary_hash(self.tokenizer.convert_ids_to_tokens, self.config.vocab_size)

    @cached_property
    def template_hash(self) -> str:
        """Hash of the chat template's results, whatever its text; empty without a template."""
        return template_hash(self.tokenizer)

    @cached_property
    def ends(self) -> EndWeights[Tensor]:
        """Embedding, final norm and lm_head; of a target of any size, training loads no more."""
        return load_ends(self.source, self.config)

    @property
    def weights(self) -> DecoderWeights[Tensor]:
        """The fused weights as tensors; layers are read as they are used, and again each time."""
        return load_weights(self.source, self.config, self.ends)

    @property
    def stored_weights(self) -> DecoderWeights[Matrix]:
        """The fused weights as the checkpoint holds them; what the CPU kernels pack."""
        return read_weights(self.source, self.config)

    @cached_property
    def decoder(self) -> Decoder:
        """The forward pass: the CPU kernels where they run, plain torch elsewhere.

        Raises a TargetError if fledge's decoder doesn't know the target (`config.undecodable`).
        """
        if self.config.undecodable:
            raise TargetError(
                f"fledge's decoder can't run {self.name}: {self.config.undecodable}. Take another checkpoint, or see "
                "docs/features.md, Targets of any other kind"
            )
        if self._backend == "torch":
            return self._torch_decoder("backend='torch' was asked for")
        from fledge.target.cpu import NativeDecoder, native_available  # may compile its kernels

        reason = native_available(self.config, self.dtype, self.device)
        if not reason:
            form = f", in {self.quantization}" if self.quantization else ""
            logger.info("%s: decoding with the native CPU kernels%s", self.name, form)
            decoder = NativeDecoder(self.config, self.stored_weights)
            self.source.release()
            return decoder
        if self._backend == "native":
            raise TargetError(f"the native CPU kernels can't run this target: {reason}. Use backend='torch'")
        unasked = self.device.type == "cpu" and native_setting() != "0"
        return self._torch_decoder(reason, unasked=unasked)

    def _torch_decoder(self, reason: str, *, unasked: bool = False) -> TorchDecoder:
        """`unasked`: a CPU's user didn't choose it, and would rather have the kernels."""
        how = "many times slower than the CPU kernels" if unasked else f"on {self.device}"
        level = logging.WARNING if unasked else logging.INFO
        logger.log(level, "%s: decoding with torch, %s, because %s", self.name, how, reason)
        return TorchDecoder(self.config, self.weights)

    @property
    def backend(self) -> str:
        """ "native" or "torch"."""
        return self.decoder.backend


def _revision(resolved: ResolvedTarget, quantization: Quantization | None) -> str:
    """The files' revision, or another one where their matrices are changed."""
    if quantization is None or (quantization == "none" and resolved.file is None):
        return resolved.revision
    return hashlib.sha256(f"{resolved.revision} {quantization}".encode()).hexdigest()


def _load_tokenizer(resolved: ResolvedTarget) -> Any:
    try:
        # The one of a GGUF file is of a known class; to find that out takes transformers seconds.
        kind = AutoTokenizer if resolved.file is None else PreTrainedTokenizerFast
        tokenizer = kind.from_pretrained(resolved.folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ImportError, TypeError) as error:
        if "trust_remote_code" in str(error):
            raise TargetError(
                f"the tokenizer in {resolved.folder} is code of the checkpoint, which fledge never runs: "
                "use a checkpoint with a tokenizer.json of a class that transformers has"
            ) from error
        raise TargetError(
            f"can't load the tokenizer in {resolved.folder} ({error}): save it there too"
        ) from error
    beside = resolved.folder / "chat_template.json"  # as transformers 4 saved a multimodal model's
    if not tokenizer.chat_template and beside.exists():
        try:
            tokenizer.chat_template = json.loads(beside.read_text(encoding="utf-8"))["chat_template"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise TargetError(f"can't read {beside} ({error!r}): download it again") from error
    # Tokens added beyond the model's stand for what isn't text, as Gemma 3's for images.
    if tokenizer.vocab_size > resolved.config.vocab_size:
        raise TargetError(
            f"the tokenizer in {resolved.folder} has {tokenizer.vocab_size} tokens, but the model only "
            f"{resolved.config.vocab_size}: use the model's own tokenizer"
        )
    return tokenizer


def _usable_device(device: str) -> torch.device:
    if device == "cuda" and "LOCAL_RANK" in os.environ:  # under torchrun, a GPU for each process
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        return torch.zeros(1, device=device).device
    except (RuntimeError, AssertionError) as error:
        message = str(error).splitlines()[0]
        raise TargetError(
            f"device {device!r} can't be used ({message}): use 'cpu' or a device torch has"
        ) from error


def _end_token_ids(folder: Path, vocab_size: int) -> list[int]:
    """Ids that end generation, as config.json and generation_config.json name them: a number, a list or nothing."""
    ends: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        try:
            value = dict(json.loads((folder / name).read_text(encoding="utf-8"))).get("eos_token_id")
        except (OSError, ValueError, TypeError):
            continue
        named = value if isinstance(value, list) else [value]
        ends.update(end for end in named if isinstance(end, int) and 0 <= end < vocab_size)
    return sorted(ends)
