"""`fledge doctor TARGET`: a model's memory on this machine and its head, told before it is loaded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from fledge.base.console import human_bytes, say
from fledge.doctor.installation import Check, show
from fledge.engine.memory import free_memory
from fledge.released import made_here, released_folder
from fledge.target import Target, TargetOptions

_MOST = 0.9  # share of free memory beyond which weights leave too little for the KV pool


def examine_target(options: TargetOptions) -> int:
    """Print every check of a target and what to do next; returns the exit code: 1 if it can't run here."""
    broken = show(_checks(options))
    if not broken:
        given = [word for name, value in _given(options) for word in (f"--{name.replace('_', '-')}", value)]
        say("", f"serve it: {shlex.join(['fledge', 'serve', options.model, *given])}")
        say("why a head's acceptance is low: fledge doctor TARGET HEAD", dim=True)
    return 1 if broken else 0


def _given(options: TargetOptions) -> list[tuple[str, str]]:
    """Fields besides the model that aren't as they are by default, as commands and recipes take them."""
    values = options.model_dump(exclude_defaults=True, exclude={"model"})
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in values.items()]


def _checks(options: TargetOptions) -> Iterator[Check]:
    target = options.load()
    c = target.config
    shape = f"{c.architecture}, {c.num_layers} layers, {c.max_position_embeddings:,} tokens of context"
    if c.undecodable:
        remedy = "take another checkpoint, or see docs/features.md, Targets of any other kind"
        yield Check("target", "broken", f"{shape}: {c.undecodable}", remedy)
        return
    yield Check("target", "ok", f"{target.name}, {shape}")
    yield _weights(target, options)
    token = c.kv_size * target.dtype.itemsize
    full = human_bytes(token * c.max_position_embeddings)
    yield Check("KV pool", "ok", f"{human_bytes(token)} a token, {full} for the whole context")
    yield _head(target, options)


def _weights(target: Target, options: TargetOptions) -> Check:
    """Their memory beside what is free; the figure is that of `Target.memory_bytes`, which reads none of them."""
    takes, free = target.memory_bytes, free_memory(target.device)
    expanded = takes >= target.dtype.itemsize * target.config.weight_count
    form = None if expanded else target.quantization  # without the CPU kernels nothing stays in its form
    form = form or str(target.dtype).removeprefix("torch.")
    found = f"{human_bytes(takes)} once loaded ({form}); {human_bytes(free)} are free on {target.device}"
    if takes < _MOST * free:
        return Check("weights", "ok", found)
    remedy = "free memory, or take a smaller model or quantisation"
    smaller = options.model_copy(update={"quantization": "q4_0"})
    if smaller.load().memory_bytes < 0.9 * takes:
        remedy += ", such as with --quantization q4_0"
    return Check("weights", "broken" if takes > free else "limited", found, remedy)


def _head(target: Target, options: TargetOptions) -> Check:
    if released_folder(target) is not None:
        return Check("head", "ok", "the released one, which serve takes by itself")
    made, found = made_here(options.model, target)
    if made is not None:
        return Check("head", "ok", f"{found}, which serve takes by itself")
    settings = [f"target.{name}={value}" for name, value in _given(options)]
    command = shlex.join(["fledge", "make-head", options.model, *settings])
    return Check("head", "limited", f"none ships for it{found}", f"make one: {command}")
