"""Hypotheses about what is wrong with a head: each one undoes one mistake, in tensors, config or feature layers.

The probe drafts the same answers with each. Where acceptance clearly rises, the head has that fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fledge.doctor.findings import Fault
from fledge.draft.description import trained
from fledge.heads import Head
from fledge.target import Target

_FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
_NORMS = ("hidden_norm", "input_norm", "post_norm", "norm")
_MATRICES = ("fc", "q", "k", "v", "o", "gate", "up", "down", "lm_head")
_CHUNKS = ("low", "middle", "high")
_HEAD_DIMS = (32, 64, 80, 96, 128, 192, 256)
_ROPE_BASES = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)
_EPSILONS = (1e-5, 1e-6)

_LOST = "compare it with the original head: fledge doctor TARGET HEAD --reference ORIGINAL"
_AGAIN = "export the head again from where it was trained; --reference ORIGINAL shows the first tensor that differs"
_CONFIG = "write the right number into config.json"
NO_EMBEDDING = (
    "leave it out, as engines then take the target's: fledge export HEAD FIXED --form FORM --no-embedding"
)
_SAME_ROW = 0.1  # of a row's norm, by which a trained embedding may have moved


class Trial(NamedTuple):
    """A head, and the layers whose outputs it is given as features."""

    head: Head
    layers: tuple[int, int, int]


@dataclass(frozen=True)
class Hypothesis:
    """A possible mistake."""

    fault: Fault
    undone: str  # completes "with ...", a head in which it is undone
    undo: Callable[[Trial], Trial]
    remedy: str = _AGAIN
    scales: bool = False  # changes magnitudes, which may help a sound head a little: too little to tell
    general: bool = False  # puts something neutral in a tensor's place: less telling than a mistake undone


def hypotheses(trial: Trial, target: Target) -> Iterator[Hypothesis]:
    """All hypotheses that this head's shapes allow, but for `other_layers`. Each may hold changed copies of tensors, so
    they are made one by one."""
    head = trial.head
    yield from _layer_shifts(trial, target)
    yield from _halves(head)
    yield from _orders(head)
    yield from _numbers(head, target)  # before norms plus one, which make up for most of a wrong eps
    yield from _norms(head, target)
    yield from _attention(head)
    yield from _transposed(head)
    yield from _outputs(head, target)
    yield from _damaged(head)


def other_layers(trial: Trial, target: Target) -> Iterator[Hypothesis]:
    """One of the three feature layers replaced by any other."""
    for place in range(3):
        for layer in range(target.config.num_layers):
            layers = list(trial.layers)
            layers[place] = layer
            if layers[0] < layers[1] < layers[2] and tuple(layers) != trial.layers:
                yield _read(layers)


def different_rows(embedding: Tensor, target: Target) -> int:
    """Rows of a head's own embedding that aren't the target's; 0 if its size isn't the target's."""
    theirs = target.ends.embedding
    if embedding.shape != theirs.shape:
        return 0
    count = 0
    for own, other in zip(embedding.split(8192), theirs.split(8192), strict=True):
        own, other = own.float(), other.float().cpu()
        count += int(((own - other).norm(dim=1) > _SAME_ROW * other.norm(dim=1)).sum())
    return count


def _layer_shifts(trial: Trial, target: Target) -> Iterator[Hypothesis]:
    """The target's own feature layers, and the head's at every offset."""
    count, layers = target.config.num_layers, trial.layers
    shifts = sorted(range(-layers[0], count - layers[2]), key=abs)
    shifted = [tuple(layer + shift for layer in layers) for shift in shifts if shift]
    candidates = [target.config.feature_layers, *shifted]
    yield from (_read(one) for one in dict.fromkeys(candidates) if one != layers)


def _read(layers: Any) -> Hypothesis:
    low, middle, high = layers
    return Hypothesis(
        "layers",
        f"the outputs of layers {low}, {middle}, {high}",
        lambda trial: Trial(trial.head, (low, middle, high)),
        f"fledge import HEAD FIXED --layers {low},{middle},{high}, then export it for your engine",
    )


def _halves(head: Head) -> Iterator[Hypothesis]:
    """Halves of fused tensors, and tensors of the same shape, under each other's names."""
    parts, size = _parts(head), head.config.hidden_size
    yield Hypothesis("gate-up", "gate and up swapped", _tensors(gate=parts["up"], up=parts["gate"]))
    for names in ("qkv", *"qkv"):
        yield Hypothesis(
            "qkv-halves",
            f"the halves of {_joined(names)} swapped (embedding first, then hidden state)",
            _tensors(**{name: parts[name].roll(size, dims=1) for name in names}),
        )
    for one, other in combinations("qkv", 2):
        if parts[one].shape == parts[other].shape:
            yield Hypothesis(
                "qkv-order",
                f"{one}_proj and {other}_proj swapped",
                _tensors(**{one: parts[other], other: parts[one]}),
            )


def _orders(head: Head) -> Iterator[Hypothesis]:
    """The chunks of fc, and of its norms, in other orders."""
    parts, norms = _parts(head), head.weights.fc_norms
    chunks = parts["fc"].chunk(3, dim=1)
    for order in list(permutations(range(3)))[1:]:
        named = ", ".join(_CHUNKS[place] for place in order)
        yield Hypothesis(
            "fc-order",
            f"fc's chunks taken in the order {named}",
            _tensors(fc=torch.cat([chunks[place] for place in order], dim=1)),
        )
        if norms is not None:
            yield Hypothesis(
                "fc-order",
                f"the fc norms taken in the order {named}",
                _tensors(fc_norms=norms[list(order)]),
            )
    rows, columns = parts["fc"].shape
    for change, first, second in (("", columns // 3, 3), ("not ", 3, columns // 3)):
        woven = parts["fc"].view(rows, first, second).transpose(1, 2).reshape(rows, columns)
        yield Hypothesis(
            "fc-order", f"fc's columns {change}taken in turn from the features", _tensors(fc=woven)
        )


def _norms(head: Head, target: Target) -> Iterator[Hypothesis]:
    norms = {name: getattr(head.weights, name) for name in _NORMS}
    if head.weights.fc_norms is not None:
        norms["fc_norms"] = head.weights.fc_norms
    for step, wording in ((1.0, "plus one (Gemma's norms are saved minus one)"), (-1.0, "minus one")):
        for names in (tuple(norms), *((name,) for name in norms)):
            yield Hypothesis(
                "norm",
                f"{'all norms' if len(names) > 1 else names[0]} {wording}",
                _tensors(**{name: norms[name] + step for name in names}),
                scales=True,
            )
    for one, other in combinations(_NORMS, 2):
        yield Hypothesis(
            "norm", f"{one} and {other} swapped", _tensors(**{one: norms[other], other: norms[one]})
        )
    for name, tensor in norms.items():
        yield Hypothesis(
            "missing-norm",
            f"{name} all ones",
            _tensors(**{name: torch.ones_like(tensor)}),
            _LOST,
            general=True,
        )
    if head.config.hidden_size == target.config.hidden_size:
        yield Hypothesis(
            "missing-norm",
            "the target's final norm",
            _tensors(norm=target.ends.norm.float().cpu()),
            _LOST,
            general=True,
        )


def _attention(head: Head) -> Iterator[Hypothesis]:
    """Rotary order, the grouping of query heads, and the size of a head."""
    c, parts = head.config, _parts(head)
    for kind, back in (("interleaved", False), ("rotate-half", True)):
        for names in ("qk", "q", "k"):
            yield Hypothesis(
                "rotary-order",
                f"the rows of {' and '.join(names)} taken from the {kind} rotary order",
                _tensors(**{name: _reorder(parts[name], c.head_dim, back=back) for name in names}),
            )
    group = c.num_heads // c.num_kv_heads
    if 1 < group < c.num_heads and c.num_kv_heads > 1:
        heads = torch.arange(c.num_heads)
        for shape in ((group, c.num_kv_heads), (c.num_kv_heads, group)):
            order = heads.view(shape).T.flatten()
            yield Hypothesis(
                "head-order",
                "the query heads in another order of their groups",
                _tensors(
                    q=parts["q"].view(c.num_heads, c.head_dim, -1)[order].flatten(0, 1),
                    o=parts["o"].view(-1, c.num_heads, c.head_dim)[:, order].flatten(1),
                ),
            )
    for size in _HEAD_DIMS:
        widths = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim)
        if size != c.head_dim and all(width % size == 0 for width in widths):
            count, kv_count = (width // size for width in widths)
            if count % kv_count == 0:
                yield Hypothesis(
                    "head-dim",
                    f"head_dim {size} ({count} heads, {kv_count} of keys) instead of {c.head_dim}",
                    _config(head_dim=size, num_heads=count, num_kv_heads=kv_count),
                    _CONFIG,
                )


def _transposed(head: Head) -> Iterator[Hypothesis]:
    """A matrix, or a square block of one, written in the other order of rows and columns."""
    parts, size = _parts(head), head.config.hidden_size
    for names in ("qkv", *_MATRICES):
        wanted = list(names) if names == "qkv" else [names]
        yield Hypothesis(
            "transposed",
            f"{_joined(wanted)} transposed",
            _tensors(**{n: parts[n].reshape(parts[n].T.shape).T.contiguous() for n in wanted}),
        )
    blocks = {name: parts[name] for name in ("fc", "q", "k", "v") if parts[name].shape[0] == size}
    for name, tensor in blocks.items():
        if tensor.shape[1] % size == 0:
            turned = torch.cat([block.T for block in tensor.split(size, dim=1)], dim=1)
            yield Hypothesis(
                "transposed", f"the square blocks of {name} transposed", _tensors(**{name: turned})
            )


def _numbers(head: Head, target: Target) -> Iterator[Hypothesis]:
    """The config's numbers and switches."""
    c, theirs = head.config, target.config
    for base in dict.fromkeys((theirs.rope_theta, *_ROPE_BASES)):
        if base != c.rope_theta:
            yield Hypothesis("rope", f"RoPE base {base:g}", _config(rope_theta=base), _CONFIG)
    for scaling in (None, theirs.rope_scaling):
        if scaling != c.rope_scaling:
            kind = "no RoPE scaling" if scaling is None else "the target's RoPE scaling"
            yield Hypothesis("rope", kind, _config(rope_scaling=scaling), _CONFIG)
    for eps in dict.fromkeys((theirs.rms_norm_eps, *_EPSILONS)):
        if eps != c.rms_norm_eps:
            yield Hypothesis("eps", f"rms_norm_eps {eps:g}", _config(rms_norm_eps=eps), _CONFIG)
    flipped = not c.norm_before_residual
    yield Hypothesis(
        "switch",
        f"norm_before_residual {str(flipped).lower()}",
        _config(norm_before_residual=flipped),
        "write that into config.json",
    )


def _outputs(head: Head, target: Target) -> Iterator[Hypothesis]:
    """The embedding, lm_head and the draft vocabulary."""
    c, w = head.config, head.weights
    same_size = c.hidden_size == target.config.hidden_size
    if w.embedding is not None and (different := different_rows(w.embedding, target)):
        yield Hypothesis(
            "embedding",
            f"the target's embedding instead of the head's own ({different:,} of {c.vocab_size:,} rows differ)",
            _tensors(embedding=None),
            NO_EMBEDDING,
        )
    ids = head.vocabulary.token_ids
    if same_size:
        rows = target.ends.lm_head[ids.to(target.ends.lm_head.device)].float().cpu()
        yield Hypothesis("lm-head", "the target's rows as lm_head", _tensors(lm_head=rows), general=True)
    for step in (1, -1):
        rolled = _tensors(lm_head=w.lm_head.roll(step, dims=0))
        yield Hypothesis("vocabulary-order", f"lm_head's rows {step:+d}", rolled)
        if int(ids.min()) + step >= 0 and int(ids.max()) + step < c.vocab_size:
            yield Hypothesis("vocabulary-map", f"d2t {step:+d}", _tensors(d2t=w.d2t + step))


def _damaged(head: Head) -> Iterator[Hypothesis]:
    """A head that predicts better without one of its parts: that part's tensors are damaged in an unknown way."""
    size, parts = head.config.hidden_size, _parts(head)

    def without(part: str, **change: Tensor) -> Hypothesis:
        return Hypothesis("damaged", f"{part} left out", _tensors(**change), _AGAIN, general=True)

    yield without("its attention", o=torch.zeros_like(parts["o"]))
    yield without("its MLP", down=torch.zeros_like(parts["down"]))
    for inputs, seen in (
        ("the embedding", slice(0, size)),
        ("the hidden state in its attention", slice(size, None)),
    ):
        yield without(inputs, **{name: _zeroed(parts[name], seen) for name in "qkv"})
    width = parts["fc"].shape[1] // 3
    for place, chunk in enumerate(_CHUNKS):
        yield without(
            f"the {chunk} feature", fc=_zeroed(parts["fc"], slice(place * width, (place + 1) * width))
        )


def _parts(head: Head) -> dict[str, Tensor]:
    """The matrices and norms by their short names."""
    parts: dict[str, Tensor] = {}
    for field, info in trained(head.config).items():
        names = _FUSED.get(field, (field,))
        if len(names) == len(info.names):
            parts |= dict(
                zip(names, info.split(head.config, getattr(head.weights, field)).values(), strict=True)
            )
    return parts


def _tensors(**changed: Tensor | None) -> Callable[[Trial], Trial]:
    """Replaces tensors, named as in `_parts` or in HeadWeights."""

    def undo(trial: Trial) -> Trial:
        head, fields = trial.head, dict[str, Any](changed)
        for fused, names in _FUSED.items():
            if any(name in fields for name in names):
                parts = _parts(head)
                fields[fused] = torch.cat([fields.pop(name, parts[name]) for name in names])
        return trial._replace(head=Head(head.config, replace(head.weights, **fields), head.metadata))

    return undo


def _config(**changed: Any) -> Callable[[Trial], Trial]:
    """Replaces fields of the config."""

    def undo(trial: Trial) -> Trial:
        head = trial.head
        return trial._replace(head=Head(replace(head.config, **changed), head.weights, head.metadata))

    return undo


def _reorder(rows: Tensor, head_dim: int, *, back: bool) -> Tensor:
    """Rows of each head from pairs (0, 1), (2, 3), ... to pairs (0, d/2), (1, d/2 + 1), ...; `back`: the other way."""
    order = torch.arange(head_dim).view((2, -1) if back else (-1, 2)).T.flatten()
    return rows.view(-1, head_dim, rows.shape[1])[:, order].flatten(0, 1)


def _zeroed(matrix: Tensor, inputs: slice) -> Tensor:
    """A projection that doesn't see some of its inputs."""
    matrix = matrix.clone()
    matrix[:, inputs] = 0
    return matrix


def _joined(names: Any) -> str:
    return ", ".join(names)
