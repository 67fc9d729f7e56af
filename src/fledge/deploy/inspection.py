"""`fledge doctor TARGET`: a model's memory on this machine and its head, told before it is loaded."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fledge.base.console import human_bytes, say
from fledge.base.storage import exists, join
from fledge.doctor.installation import Check, show
from fledge.engine.memory import free_memory
from fledge.heads.checkpoint import CONFIG_NAME
from fledge.released import released_folder
from fledge.sources.find import run_folder
from fledge.target import Target, TargetOptions


def examine_target(options: TargetOptions) -> int:
    """Print every check of a target and what to do next; returns the exit code: 1 if it can't run here."""
    broken = show(_checks(options))
    if not broken:
        say("", f"serve it: fledge serve {shlex.quote(options.model)}")
    say("why a head's acceptance is low: fledge doctor TARGET HEAD", dim=True)
    return 1 if broken else 0


def _checks(options: TargetOptions) -> Iterator[Check]:
    target = options.load()
    c = target.config
    shape = f"{c.architecture}, {c.num_layers} layers, {c.max_position_embeddings:,} tokens of context"
    if c.undecodable:
        remedy = "take another checkpoint, or see docs/features.md, Targets of any other kind"
        yield Check("target", "broken", f"{shape}: {c.undecodable}", remedy)
        return
    yield Check("target", "ok", f"{target.name}, {shape}")
    yield _weights(target)
    token = c.num_layers * 2 * c.num_kv_heads * c.head_dim * target.dtype.itemsize
    full = human_bytes(token * c.max_position_embeddings)
    yield Check("KV pool", "ok", f"{human_bytes(token)} a token, {full} for the whole context")
    yield _head(options.model, target)


def _weights(target: Target) -> Check:
    """Their memory beside what is free; the figure is that of `Target.memory_bytes`, which reads none of them."""
    takes, free = target.memory_bytes, free_memory(target.device)
    form = target.quantization or str(target.dtype).removeprefix("torch.")
    found = f"{human_bytes(takes)} once loaded ({form}); {human_bytes(free)} are free on {target.device}"
    if takes <= free:
        return Check("weights", "ok", found)
    smaller = "" if target.quantization else ", or --quantization q4_0, a quarter of bf16"
    return Check("weights", "broken", found, f"free memory, or take a smaller quantisation{smaller}")


def _head(model: str, target: Target) -> Check:
    if released_folder(target) is not None:
        return Check("head", "ok", "the released one, which serve takes by itself")
    folder = join(run_folder(model), "head")
    if exists(join(folder, CONFIG_NAME)):
        return Check("head", "ok", f"{folder}, which serve takes by itself")
    return Check("head", "limited", "none ships for it", f"make one: fledge make-head {shlex.quote(model)}")
