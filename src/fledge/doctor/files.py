"""Findings from a head's files, compared with the target; no forward runs. Faulty files are read as far as possible."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from fledge.base.errors import HeadError
from fledge.doctor.findings import Defect
from fledge.draft.description import TENSORS
from fledge.heads.foreign import flat_config, head_metadata, named_layers, unused_tensors
from fledge.target import Target
from fledge.target.config import are_three_layers
from fledge.target.rope_fields import read_rope

_FLOAT16_MAX = torch.finfo(torch.float16).max
_TRAINED = [info for info in TENSORS.values() if not info.frozen]
_NEGATIVE = 0.3  # largest share of negative values in a trained norm
_ZERO_ROWS = 0.01  # largest share of all-zero rows in a trained matrix


def file_findings(
    raw: Mapping[str, Any], named: Mapping[str, Tensor], target: Target, url: str
) -> Iterator[Defect]:
    """Findings from config.json and tensors with canonical names, causes before consequences."""
    try:
        flat = flat_config(raw, named, url)
    except HeadError as error:
        what, _, remedy = str(error).rpartition(": ")
        yield Defect("unreadable", what, remedy)
        return
    except (TypeError, ValueError, AttributeError) as error:
        yield Defect("unreadable", f"config.json can't be used ({error})", "get the head again")
        return
    if unused := unused_tensors(named):
        what = f"a head would run without {', '.join(unused)}"
        yield Defect("unreadable", what, "use a plain EAGLE-3 head")
    yield from _sizes(flat, named, target)
    yield from _origin(raw, flat, target)
    yield from _layers(flat, target)
    yield from _missing(flat, named)
    if not _untrained(raw):
        yield from _lost(named)
    yield from vocabulary_findings(named, target.config.vocab_size)
    yield from _positions(flat, target)
    yield from _values(flat, named)


def _sizes(flat: Mapping[str, Any], named: Mapping[str, Tensor], target: Target) -> Iterator[Defect]:
    c = target.config
    fc = named.get("fc.weight")
    pairs = [("vocab_size", flat.get("vocab_size"), c.vocab_size)]
    if fc is not None:
        pairs.append(("size of a feature", fc.shape[1] // 3, c.hidden_size))
    for name, actual, expected in pairs:
        if actual != expected:
            yield Defect(
                "target", f"{name} is {actual}, the target's is {expected}", "use the head's own target"
            )


def _origin(raw: Mapping[str, Any], flat: Mapping[str, Any], target: Target) -> Iterator[Defect]:
    m = head_metadata(raw, flat)
    if m.vocabulary_hash and m.vocabulary_hash != target.vocabulary_hash:
        yield Defect(
            "target", "the head learnt with other tokens than the target's", "use the head's own target"
        )
    if m.template_hash and m.template_hash != target.template_hash:
        yield Defect(
            "template",
            f"the head learnt with the chat template {m.template_hash}, the target has {target.template_hash}",
            "serve with the template the head was trained with, or train a head for this one",
        )
    elif m.template_hash and dict(m.chat_template_kwargs) != dict(target.chat.options):
        yield Defect(
            "template",
            f"the head learnt with chat_template_kwargs {json.dumps(dict(m.chat_template_kwargs))}, this is "
            f"{json.dumps(dict(target.chat.options))}",
            "serve with those of its training, and examine it with the same --chat-template-kwargs",
        )


def _layers(flat: Mapping[str, Any], target: Target) -> Iterator[Defect]:
    layers, expected, n = named_layers(flat), target.config.feature_layers, target.config.num_layers
    if _off_by_one(layers, expected):
        why = "off by one: inputs were counted where outputs are meant, or the other way round"
    elif layers and not are_three_layers(layers, n):
        why = f"fledge reads the outputs of three layers in order, and the target has {n}"
    else:
        return
    yield Defect(
        "layers",
        f"the config names the outputs of layers {_joined(layers)}, the target's features {_joined(expected)}: {why}",
        "fledge import HEAD FIXED --layers with the layers it was trained on, then export it for your engine",
    )


def meant_layers(flat: Mapping[str, Any], target: Target) -> tuple[int, ...]:
    """The layers a head was trained on: those it names, or the defaults if it names none or is off by one."""
    layers, default = named_layers(flat), target.config.feature_layers
    return default if not layers or _off_by_one(layers, default) else layers


def _off_by_one(layers: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(layers) == len(target) and {a - b for a, b in zip(layers, target, strict=True)} in ({1}, {-1})


def _missing(flat: Mapping[str, Any], named: Mapping[str, Tensor]) -> Iterator[Defect]:
    for info in _TRAINED:
        switched_off = info.switch and not flat.get(info.switch)
        for name in info.names:
            if name not in named and not switched_off:
                yield Defect(
                    "missing-norm" if "norm" in name else "missing-tensor",
                    f"there is no {name}: engines then run on a neutral or random one without an error",
                    "get the head again, or export it again from where it was trained",
                )
        if switched_off and any(name in named for name in info.names):
            yield Defect(
                "missing-norm" if "norm" in info.switch else "missing-tensor",
                f"there are {info.switch} tensors, but the config doesn't switch them on: engines leave them out",
                f'write "{info.switch}": true into config.json',
            )


def _lost(named: Mapping[str, Tensor]) -> Iterator[Defect]:
    """Tensors as no training leaves them: norms constant or half negative, rows of zeros, a tensor under two names."""
    remedy = "compare it with the original head: fledge doctor TARGET HEAD --reference ORIGINAL"
    names = {name: bool(info.switch) for info in _TRAINED for name in info.names}
    floats = {name: named[name] for name in names if name in named and named[name].numel() > 1}
    for name, tensor in floats.items():
        what = ""
        if "norm" in name and not names[name] and bool((tensor == tensor[0]).all()):
            value = "ones" if tensor[0] == 1 else "zeros" if tensor[0] == 0 else f"{float(tensor[0]):g}"
            what = f"{name} is all {value}: a trained norm isn't, so a converter may have lost it"
        elif tensor.dim() == 2 and (zero := int((tensor == 0).all(dim=1).sum())) > _ZERO_ROWS * len(tensor):
            what = f"{zero:,} of the {len(tensor):,} rows of {name} are zero"
        if what:
            yield Defect("missing-norm" if "norm" in name else "values", what, remedy, certain=False)
        elif "norm" in name and float((tensor < 0).float().mean()) > _NEGATIVE:
            what = f"{name} is negative in many places, as a norm saved minus one (Gemma's way) is"
            yield Defect("norm", what, remedy, certain=False)
    for (name, tensor), (other, second) in combinations(floats.items(), 2):
        constant = bool((tensor == tensor.flatten()[0]).all())
        if tensor.shape == second.shape and not constant and torch.equal(tensor, second):
            yield Defect("values", f"{name} and {other} are the same", remedy, certain=False)


def vocabulary_findings(named: Mapping[str, Tensor], vocab_size: int) -> Iterator[Defect]:
    """Check that d2t contains ascending offsets and agrees with t2d."""
    d2t, t2d, lm_head = named.get("d2t"), named.get("t2d"), named.get("lm_head.weight")
    if d2t is None:
        if lm_head is not None and lm_head.shape[0] != vocab_size:
            yield Defect(
                "vocabulary-map", "there is no d2t for a reduced vocabulary", "export the head again"
            )
        return
    d2t = d2t.long()
    members = None if t2d is None else t2d.bool().nonzero().flatten()
    ids = d2t + torch.arange(len(d2t))
    ascending = bool((d2t.diff() > 0).all())
    absolute = members is not None and torch.equal(d2t, members) and bool(d2t.any())
    outside = bool((ids < 0).any()) or bool((ids >= vocab_size).any())
    if absolute or (outside and ascending):
        yield Defect(
            "vocabulary-map",
            "d2t holds token ids; engines add them to the draft id, so every proposal is another token",
            "subtract 0, 1, 2, ... from d2t, or export the head again",
        )
    elif outside:
        yield Defect("vocabulary-map", "d2t points outside the target's vocabulary", "export the head again")
    elif members is not None and not torch.equal(ids.sort().values, members):
        yield Defect("vocabulary-map", "d2t and t2d name different tokens", "export the head again")
    elif bool((ids.diff() <= 0).any()):
        yield Defect(
            "vocabulary-order",
            "the draft vocabulary isn't in the order of token ids, which is the order training uses through t2d",
            "export the head again from where it was trained",
        )


def _positions(flat: Mapping[str, Any], target: Target) -> Iterator[Defect]:
    c = target.config
    length = int(flat.get("max_position_embeddings") or 0)
    theta, scaling = read_rope(flat, length or c.own_positions)
    kind, expected = ((s or {}).get("rope_type", "default") for s in (scaling, c.rope_scaling))
    if theta != c.rope_theta or kind != expected:
        yield Defect(
            "rope",
            f"RoPE base {theta:g} ({kind}), the target's is {c.rope_theta:g} ({expected})",
            "write the base the head was trained with into config.json; a head made from its target has the target's",
        )
    if length < c.own_positions:
        yield Defect(
            "context",
            f"max_position_embeddings is {length}, the target's is {c.own_positions}: "
            "past it engines draft nonsense or stop with an error",
            "write the target's length into config.json",
        )


def _values(flat: Mapping[str, Any], named: Mapping[str, Tensor]) -> Iterator[Defect]:
    half = is_half(flat)
    for name, tensor in named.items():
        if not tensor.is_floating_point():
            continue
        half_tensor = half or tensor.dtype == torch.float16
        if not bool(tensor.isfinite().all()):
            yield Defect(
                "float16" if half_tensor else "values",
                f"{name} has infinite or not-a-number values"
                + (": it overflowed when it was written as float16" if half_tensor else ""),
                "export the original head again with --dtype bfloat16",
            )
        elif half_tensor and float(tensor.abs().max()) > _FLOAT16_MAX:
            yield Defect(
                "float16",
                f"{name} has values up to {float(tensor.abs().max()):.3g}; float16, as the config says, ends at 65504",
                'write "torch_dtype": "bfloat16" into config.json and serve in bfloat16',
            )


def is_half(raw: Mapping[str, Any]) -> bool:
    """True if a config requests float16."""
    return str(raw.get("torch_dtype") or raw.get("dtype")).removeprefix("torch.") == "float16"


def _untrained(raw: Mapping[str, Any]) -> bool:
    """True if fledge wrote the head without training it."""
    recorded = raw.get("fledge") or {}
    return bool(recorded.get("target_revision")) and not recorded.get("training")


def _joined(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))
