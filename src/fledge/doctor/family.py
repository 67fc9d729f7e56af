"""`fledge doctor --family`: whether fledge's decoder computes an architecture as transformers does.

Both run a small model with random weights (`small_model.py`) over the same tokens. In float32 they must agree layer by
layer; the CPU kernels, which compute in bfloat16, must be about as close to float32 as transformers' bfloat16 is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.base.console import say
from fledge.base.errors import TargetError
from fledge.doctor.installation import Check, show
from fledge.doctor.small_model import save_small_model
from fledge.target import families
from fledge.target.batch import Decoder, ForwardBatch, one_sequence
from fledge.target.config import DecoderConfig, architecture_of, read_config
from fledge.target.cpu import NativeDecoder, native_available
from fledge.target.decoder import TorchDecoder
from fledge.target.families import SUPPORTED_ARCHITECTURES
from fledge.target.source import open_source
from fledge.target.weights import DecoderWeights, load_weights, read_weights

_TOKENS = 150  # beyond the small model's windows
_PARTS = (100, 140, *range(141, _TOKENS + 1))  # a prefix, a continuation, and one token at a time
_EXACT = 1e-4  # of the largest value: float32 in another order of summation
_ROUNDED = 1.5  # times the mean error of transformers' bfloat16


def examine_family(folder: Path) -> int:
    """Print every check of the family that `folder`'s config.json belongs to; returns the exit code."""
    import transformers

    architecture = architecture_of(read_config(folder))
    say(
        f"{architecture}: fledge's decoder beside transformers {transformers.__version__}, on a small random model"
    )
    with tempfile.TemporaryDirectory() as place, _without_messages_of_transformers():
        broken = show(_checks(folder, architecture, Path(place)))
    say("", f"differs or fails: {broken}" if broken else f"{architecture} is computed as in transformers")
    return 1 if broken else 0


@contextmanager
def _without_messages_of_transformers() -> Iterator[None]:
    """Neither bars of loading, nor warnings about the small sizes."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _checks(folder: Path, architecture: str, place: Path) -> Iterator[Check]:
    family = families.find(architecture)
    if not family.architectures:
        found = f"{architecture} is none; there are {', '.join(SUPPORTED_ARCHITECTURES)}"
        remedy = "describe it in a Family and register that: docs/extend.md, Add a target family"
        yield Check("family", "broken", found, remedy)
        return
    if reason := DecoderConfig.from_folder(folder).undecodable:
        remedy = "take another checkpoint; what a Family can say is in docs/extend.md"
        yield Check("family", "broken", f"the decoder can't run it: {reason}", remedy)
        return
    from transformers import AutoModelForCausalLM

    save_small_model(folder, architecture, family, place)
    exact, rounded = (
        AutoModelForCausalLM.from_pretrained(place, dtype=dtype).eval()
        for dtype in (torch.float32, torch.bfloat16)
    )
    try:
        yield from compare(place, exact)
        yield compare_kernels(place, exact, rounded)
    except TargetError as error:
        remedy = "the file is a good one, saved by transformers: correct the family's names and fields"
        yield Check("weights", "broken", str(error), remedy)


def compare(folder: Path, model: Any) -> Iterator[Check]:
    """The torch decoder beside `model`, transformers' of the checkpoint in `folder`, both in float32.

    The first check that fails has a remedy, which says where the difference begins.
    """
    config = DecoderConfig.from_folder(folder)
    read = load_weights(open_source(folder, config, torch.float32), config)
    weights = replace(read, layers=list(read.layers))
    decoder, ids = TorchDecoder(config, weights), _random_ids(config.vocab_size)
    batch, kv = _batch(decoder, ids), decoder.allocate_kv(_pages(decoder))
    ours = decoder.forward(batch, kv, logits="logits", features=True, hidden=True)
    with torch.no_grad():
        theirs = model(torch.tensor([ids]), output_hidden_states=True)
    states, logits = [state[0] for state in theirs.hidden_states], theirs.logits[0]
    assert ours.logits is not None
    assert ours.features is not None
    assert ours.hidden is not None

    embedded = F.embedding(torch.tensor(ids), weights.embedding) * config.embedding_scale
    layers = [
        _difference(one, state)
        for one, state in zip(_layer_outputs(config, weights, ids), states[1:-1], strict=True)
    ]
    first = next((index for index, far in enumerate(layers) if not far <= _EXACT), None)
    three = torch.cat([states[layer + 1] for layer in config.feature_layers], dim=-1)
    equal = int((ours.logits.argmax(-1) == logits.argmax(-1)).sum())
    compared = {
        "embeddings": (_difference(embedded, states[0]), "the embedding, or its scale"),
        f"outputs of layers 0 to {len(layers) - 1}": (
            max(layers) if first is None else layers[first],
            f"layer {first}: its norms, biases, RoPE, window, scales, activation or experts",
        ),
        f"features of layers {', '.join(map(str, config.feature_layers))}": (
            _difference(ours.features, three),
            "the choice of feature layers",
        ),
        "last hidden state": (_difference(ours.hidden, states[-1]), "the last layer, or the norm behind it"),
        f"logits, {equal} of {_TOKENS} most probable tokens equal": (
            _difference(ours.logits, logits),
            "lm_head, or the scale of logits",
        ),
        "logits of a prefix and its continuation, with a KV cache": (
            _difference(_logits_in_parts(decoder, ids), logits),
            "positions or windows behind a prefix",
        ),
    }
    place = ""
    for name, (far, where) in compared.items():
        found = f"differ by {far:.1e} of the largest value, {_EXACT:.0e} is allowed"
        if far <= _EXACT:
            yield Check(name, "ok", found)
        else:
            yield Check(name, "broken", found, "" if place else f"the difference begins in {where}")
            place = where


def compare_kernels(folder: Path, exact: Any, rounded: Any) -> Check:
    """The CPU kernels' logits, in parts; `exact` and `rounded` are transformers' model in float32 and bfloat16."""
    config = DecoderConfig.from_folder(folder)
    if reason := native_available(config, torch.bfloat16, "cpu"):
        return Check("CPU kernels", "limited", f"not compared: {reason}", "such targets decode in PyTorch")
    decoder = NativeDecoder(config, read_weights(open_source(folder, config, torch.bfloat16), config))
    ids = _random_ids(config.vocab_size)
    with torch.no_grad():
        right, theirs = (model(torch.tensor([ids])).logits[0].float() for model in (exact, rounded))
    ours = _logits_in_parts(decoder, ids)
    ratio = float((ours - right).abs().mean() / (theirs - right).abs().mean())
    found = f"{ratio:.2f} times the mean error of transformers' bfloat16, {_ROUNDED} is allowed"
    if ratio <= _ROUNDED:
        return Check("CPU kernels", "ok", found)
    return Check("CPU kernels", "broken", found, "if all else agrees, report it: the kernels are wrong")


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _random_ids(vocab: int) -> list[int]:
    ids: list[int] = torch.randint(0, vocab, (_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    return ids


def _layer_outputs(config: DecoderConfig, weights: DecoderWeights[Tensor], ids: list[int]) -> list[Tensor]:
    """[R, H] of each layer but the last, whose output transformers gives behind the norm alone."""
    outputs: dict[int, Tensor] = {}
    for start in range(0, config.num_layers - 1, 3):
        layers = range(config.num_layers)[max(min(start, config.num_layers - 3), 0) :][:3]
        decoder = TorchDecoder(config.with_feature_layers(layers), weights)
        kv = decoder.allocate_kv(_pages(decoder))
        features = decoder.forward(_batch(decoder, ids), kv, logits="none", features=True).features
        assert features is not None
        outputs |= dict(zip(layers, features.chunk(3, dim=-1), strict=True))
    return [outputs[layer] for layer in range(config.num_layers - 1)]


def _logits_in_parts(decoder: Decoder, ids: list[int]) -> Tensor:
    """[R, V], from forwards that each continue what the KV cache holds."""
    kv = decoder.allocate_kv(_pages(decoder))
    parts = [
        decoder.forward(_batch(decoder, ids, start, end), kv, logits="logits").logits
        for start, end in zip((0, *_PARTS), _PARTS, strict=False)
    ]
    return torch.cat([part for part in parts if part is not None])


def _pages(decoder: Decoder) -> int:
    return -(-_TOKENS // decoder.page_size)


def _batch(decoder: Decoder, ids: list[int], start: int = 0, end: int = _TOKENS) -> ForwardBatch:
    """Tokens from `start` to `end` of one request."""
    whole = one_sequence(ids, decoder.page_size, torch.device("cpu"))
    return whole._replace(
        token_ids=whole.token_ids[start:end],
        positions=whole.positions[start:end],
        row_start=torch.tensor([0, end - start], dtype=torch.int32),
        prefix_length=torch.tensor([start], dtype=torch.int32),
    )
