"""Exchanging heads: `fledge export` writes one in an engine's form, `fledge import` reads one trained elsewhere,
`fledge doctor` explains why one accepts little."""

from __future__ import annotations

import logging
import posixpath
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from huggingface_hub import constants

from fledge.base import llama_server
from fledge.base.console import StageProgress, say
from fledge.base.errors import HeadError
from fledge.base.storage import exists, join, write_atomic
from fledge.doctor import diagnose
from fledge.heads import Head
from fledge.heads.card import model_card
from fledge.heads.checkpoint import CONFIG_NAME, write_head
from fledge.heads.engines import instead_of_last_layer, refusal, sglang_misses
from fledge.heads.forms import FORMS, Form, canonical_tensors, check_form
from fledge.heads.gguf import TYPES, GgufType, rounded, write_gguf
from fledge.heads.hub import push_folder
from fledge.released import RELEASED, head_url
from fledge.sources.gguf import is_gguf
from fledge.target import Target, TargetOptions
from fledge.target.config import are_three_layers

logger = logging.getLogger("fledge")

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def export_head(
    source: str,
    destination: str,
    *,
    form: str,
    target: str | None = None,
    embedding: bool | None = None,
    dtype: str = "keep",
    push: str | None = None,
) -> Head:
    """Write a head in another form, with a model card, then read it back and compare every bit.

    Args:
        source: a head in any known form, or `released`.
        destination: folder or fsspec URL.
        form: one of `fledge.heads.forms.FORMS`, or gguf: one file, named by `destination`.
        target: the head's target, used to check it and to fill in its name, layers, embedding and, in gguf, tokenizer.
        embedding: include the target's embedding; None: if the form needs it (eagle).
        dtype: keep, bfloat16, float16 or float32; of gguf also q8_0 and q4_0.
        push: hub repository to upload the folder to.
    """
    if form == "gguf":
        return _export_gguf(source, destination, target=target, embedding=embedding, dtype=dtype, push=push)
    chosen, torch_dtype = check_form(form), _dtype(dtype)
    _refuse_overwriting(destination)
    named = None if source == RELEASED else Head.load(source)
    loaded = None if target is None else Target.load(target)
    head = named or Head.load(_source(source, loaded))
    if loaded is not None:
        head = _fitted(head, loaded)
    if embedding is None and chosen in ("eagle", "eagle4") and loaded is not None:
        embedding = True
    head = _embedded(head, loaded, wanted=embedding)
    head = head if chosen == "eagle4" else head.scoring_all()
    for name, known in head.config.engines.items():
        forms = [one for one in FORMS if one in known]
        if chosen not in forms:
            remedy = f"use the {' or '.join(forms)} form" if forms else "serve it with fledge"
            raise HeadError(
                f"this head uses {name}, which engines of the {chosen} form leave out without an error: {remedy}"
            )
    missed = sglang_misses(head.metadata.feature_layers, head.metadata.target_layers)
    if missed and chosen in ("sglang", "specforge"):
        raise HeadError(f"{missed}: {instead_of_last_layer(head.metadata.target_layers)}")
    if torch_dtype == torch.float16:
        _check_float16(head)
    if loaded is not None and (sentence := refusal(chosen, loaded.config.architecture)):
        logger.warning("%s", sentence)
    _write(head, destination, chosen, torch_dtype, push or _name(destination))
    _compare(head, Head.load(destination), torch_dtype, destination)
    say(f"head: {destination} ({chosen} form, every tensor read back and compared)")
    if push is not None:
        say(f"uploading to {constants.ENDPOINT}/{push}; if it doesn't exist yet, it is created as private")
        with tempfile.TemporaryDirectory() as folder:
            _write(head, folder, chosen, torch_dtype, push)
            say(f"pushed: {push_folder(folder, push)}")
    return head


def _export_gguf(
    source: str, destination: str, *, target: str | None, embedding: bool | None, dtype: str, push: str | None
) -> Head:
    """See `export_head`: one file for llama.cpp."""
    if target is None:
        raise HeadError("a head in GGUF holds its target's tokenizer: name the target with --target")
    if not is_gguf(Path(destination)):
        raise HeadError(f"{destination} is no name of a GGUF file: let it end with .gguf")
    if exists(destination):
        Head.load(destination)  # only a head is overwritten
    loaded = Target.load(target)
    head = _embedded(
        _fitted(Head.load(_source(source, loaded)), loaded), loaded, wanted=embedding
    ).scoring_all()
    kind = _gguf_type(head, dtype)
    if kind == "f16":
        _check_float16(head)
    write_gguf(head, destination, loaded, kind)
    written = Head.load(destination)
    mine, theirs = canonical_tensors(head), canonical_tensors(written)
    same = mine.keys() == theirs.keys() and torch.equal(head.weights.d2t, written.weights.d2t)
    if not same or not all(torch.equal(rounded(mine[n], kind), theirs[n].float()) for n in mine):
        raise HeadError(
            f"{destination} reads back with other weights: don't use it, and report this as a bug"
        )
    say(f"head: {destination} ({kind}, every tensor read back and compared)")
    say(llama_server.command(str(loaded.place), destination), dim=True)
    if push is not None:
        with tempfile.TemporaryDirectory() as folder:
            write_gguf(head, join(folder, posixpath.basename(destination)), loaded, kind)
            write_atomic(join(folder, "README.md"), model_card(head, "gguf", push).encode())
            say(f"pushed: {push_folder(folder, push)}")
    return head


def import_head(
    source: str, destination: str, *, target: str | None = None, layers: list[int] | None = None
) -> Head:
    """Convert a head of any known form to fledge's own, bit for bit.

    `layers`: the three layers whose outputs the head was trained on, if its config is wrong.
    """
    _refuse_overwriting(destination)
    head = Head.load(source)
    if layers:
        if not are_three_layers(layers):
            raise HeadError(f"--layers {layers} is invalid: give three layers in order, such as 1,14,26")
        head = Head(head.config, head.weights, replace(head.metadata, feature_layers=tuple(layers)))
    if target is not None:  # whose chat template it is for from now on, whichever it was trained in
        loaded = Target.load(target)
        head = Head(head.config, head.weights, replace(head.metadata, template_hash=""))
        head = _fitted(head, loaded)
    write_head(head, destination, dtype=None)
    _compare(head, Head.load(destination), None, destination)
    say(f"head: {destination} (every tensor read back and compared)")
    if target is None:
        say(f"not checked against its target; run: fledge doctor TARGET {destination}", dim=True)
    return head


def examine(
    target: TargetOptions,
    head: str,
    *,
    engine: str | None,
    reference: str | None,
    depth: int | None,
    max_tokens: int,
) -> int:
    """Print the doctor's findings; returns the exit code."""
    loaded = target.load()
    with StageProgress("doctor") as progress:
        diagnosis = diagnose(
            loaded,
            head_url(loaded, head),
            engine=engine,
            reference=reference,
            depth=depth,
            max_tokens=max_tokens,
            progress=progress.update,
        )
    for row in diagnosis.measured:
        say(f"{row.name}: {row.value}", dim=True)
    for finding in diagnosis.findings:
        likely = "" if finding.certain else " (likely)"
        say(f"{finding.fault}{likely}: {finding.what}. {finding.remedy}.")
    if not diagnosis.findings:
        say("no fault found")
    return 1 if diagnosis.findings else 0


def parse_layers(text: str | None) -> list[int] | None:
    """Layer numbers from `1,14,26`."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise HeadError(f"--layers {text} can't be read: give three numbers such as 1,14,26") from None


def first_difference(one: Head, other: Head) -> str | None:
    """The name of the first tensor, in the order of a forward, that differs in any bit; None: all are equal."""
    if not torch.equal(one.weights.d2t, other.weights.d2t):
        return "d2t"
    mine, theirs = canonical_tensors(one), canonical_tensors(other)
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        a, b = mine.get(name), theirs.get(name)
        if a is None or b is None or a.dtype != b.dtype or not torch.equal(a, b):
            return name
    return None


def _fitted(head: Head, target: Target) -> Head:
    """The head checked against its target, with missing records filled in from the target."""
    target = head.target_it_reads(target)
    head = head.fitted_to(target)
    m, c = head.metadata, target.config
    metadata = replace(
        m,
        target_name=m.target_name or target.name,
        target_architecture=m.target_architecture or c.architecture,
        target_layers=c.num_layers,
        feature_layers=m.feature_layers or c.feature_layers,
        vocabulary_hash=m.vocabulary_hash or target.vocabulary_hash,
        template_hash=m.template_hash or target.template_hash,
    )
    return Head(head.config, head.weights, metadata)


def _embedded(head: Head, target: Target | None, *, wanted: bool | None) -> Head:
    """The head with the target's embedding, without one, or (None) as it is."""
    if wanted:
        return _with_embedding(head, target)
    if wanted is None or head.weights.embedding is None:
        return head
    if head.config.hidden_size != head.config.target_hidden_size:
        raise HeadError(
            "this head needs its own embedding, since its size isn't the target's: leave --no-embedding out"
        )
    return Head(head.config, replace(head.weights, embedding=None), head.metadata)


def _with_embedding(head: Head, target: Target | None) -> Head:
    if head.weights.embedding is not None:
        return head
    if target is None:
        raise HeadError("the embedding is the target's: name it with --target")
    embedding = target.ends.embedding.to("cpu", head.weights.lm_head.dtype)
    return Head(head.config, replace(head.weights, embedding=embedding), head.metadata)


def _compare(head: Head, written: Head, dtype: torch.dtype | None, destination: str) -> None:
    expected = head if dtype is None else Head(head.config, head.weights.to(dtype), head.metadata)
    name = first_difference(expected, written) or (
        None if expected.config == written.config else "config.json"
    )
    if name is not None:
        raise HeadError(
            f"{destination} reads back with another {name}: don't use it, and report this as a bug"
        )


def _check_float16(head: Head) -> None:
    largest = torch.finfo(torch.float16).max
    for name, tensor in canonical_tensors(head).items():
        if not bool((tensor.abs() <= largest).all()):
            raise HeadError(f"{name} has values float16 can't hold: export with --dtype bfloat16")


def _write(head: Head, folder: str, form: Form, dtype: torch.dtype | None, name: str) -> None:
    """Write the head and its model card, which uses `name`."""
    write_head(head, folder, form, dtype=dtype)
    write_atomic(join(folder, "README.md"), model_card(head, form, name).encode())


def _refuse_overwriting(destination: str) -> None:
    """Raise a HeadError for a folder with another config.json, such as a model's, whose weights would be lost."""
    if not exists(join(destination, CONFIG_NAME)):
        return
    try:
        Head.load(destination)
    except HeadError as error:
        raise HeadError(
            f"{destination} holds a {CONFIG_NAME} of no whole head, which would be overwritten; name another folder"
        ) from error


def _source(source: str, target: Target | None) -> str:
    if source != RELEASED:
        return source
    if target is None:
        raise HeadError("the released head is found by its target: name it with --target")
    return head_url(target, source)


def _name(url: str) -> str:
    return posixpath.basename(url.rstrip("/")) or url


def _gguf_type(head: Head, name: str) -> GgufType:
    names = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
    wanted = str(head.weights.lm_head.dtype).removeprefix("torch.") if name == "keep" else name
    for kind in TYPES:
        if kind == names.get(wanted, wanted):
            return kind
    raise HeadError(f"dtype {name!r} is unknown in GGUF: use keep, {', '.join([*_DTYPES, *TYPES])}")


def _dtype(name: str) -> torch.dtype | None:
    if name != "keep" and name not in _DTYPES:
        raise HeadError(f"dtype {name!r} is unknown: use keep, {', '.join(_DTYPES)}")
    return _DTYPES.get(name)
