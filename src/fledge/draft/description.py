"""A draft head, described once: its sizes, its switches and its tensors.

feature g[p] --fc--> h --+--> hidden_norm --.
                         |                   concat -> attention -> + -> post_norm -> MLP -> + --> next h
embed(x[p+1]) --> input_norm ---------------'              ^                        ^        |
                         |_________________________________|________________________|   norm, lm_head -> x[p+2]

Checkpoint forms and the readers of foreign heads, options of training, cards, estimates and the doctor follow from the
description. A switch of the computation is a field of `HeadConfig` and a row of `SWITCHES`, a tensor a field of
`HeadWeights` and a row of `TENSORS`. They are computed in plain torch (runner.py), in training (train/unroll.py) and by
the kernels (native/models.h, forward.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fledge.base.errors import HeadError
from fledge.draft.options import HeadOptions

if TYPE_CHECKING:  # options of training, which --help shows, don't wait for torch
    import torch
    from torch import Tensor

    from fledge.target.config import DecoderConfig

CANDIDATE_TENSORS = ("candidate_up", "candidate_down")  # fields of HeadWeights
SINKS = 4  # first positions that a windowed head sees besides (StreamingLLM, arXiv 2309.17453)
WINDOW, WINDOW_SINKS = "sliding_window", "sliding_window_sinks"  # in config.json
LAYER = "midlayer"  # the canonical prefix of the head's one decoder layer


class Switch(NamedTuple):
    """A choice in a head's computation; its name is that in config.json."""

    says: str  # in the documentation of options
    version: str = "EAGLE-3"
    forms: Collection[
        str
    ] = ()  # whose engines compute it; in others they would leave it out without an error
    trainable: bool = True  # there is an option of training


class TensorInfo(NamedTuple):
    """A tensor of a head: how files name its parts, and its shape."""

    names: tuple[str, ...]  # canonical, one for each part along the first dimension
    shape: Callable[[HeadConfig], tuple[int, ...]]
    rows: Callable[[HeadConfig], list[int]] | None = None  # of each part; None: equal ones
    switch: str = ""  # with which it is there; empty: always
    frozen: bool = False  # the target's, or a map: it isn't trained
    initial: float | None = None  # of all its numbers in a new head; None: a matrix, drawn
    stacked: bool = False  # files hold rows, not blocks of rows

    def split(self, config: HeadConfig, tensor: Tensor) -> dict[str, Tensor]:
        """Its parts as files have them, by canonical name."""
        if self.stacked:
            return dict(zip(self.names, tensor, strict=True))
        sizes = self.rows(config) if self.rows else [len(tensor) // len(self.names)] * len(self.names)
        return dict(zip(self.names, tensor.split(sizes), strict=True))

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The tensor, from its parts by canonical name."""
        import torch

        found = [parts[name] for name in self.names]
        if len(found) == 1:
            return found[0]
        return torch.stack(found) if self.stacked else torch.cat(found)


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and switches of an EAGLE-3 head: one Llama layer whose attention reads embedding and hidden state."""

    hidden_size: int  # H
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    vocab_size: int  # the target's
    draft_vocab_size: int  # Vd
    target_hidden_size: int  # Ht
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
    candidates: int = 0  # tokens with exact scores, by low-rank estimates of all scores; 0: all tokens
    candidate_rank: int = 0  # r of these estimates
    window: int = 0  # committed positions that a query sees at most, besides its own path's tokens; 0: all
    sinks: int = 0  # with a window, the first positions, which it sees besides

    @property
    def qkv_size(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def switches(self) -> tuple[str, ...]:
        """The names of those that are on."""
        return tuple(name for name in SWITCHES if getattr(self, name))

    @property
    def engines(self) -> Mapping[str, Collection[str]]:
        """Forms whose engines compute what it has besides EAGLE-3's layer, by the name of that in config.json."""
        known = () if self.sinks else ("eagle4",)
        windowed: dict[str, Collection[str]] = {WINDOW: known} if self.window else {}
        return {name: SWITCHES[name].forms for name in self.switches} | windowed

    @property
    def version(self) -> str:
        """The EAGLE version that computes all this."""
        return max((SWITCHES[name].version for name in self.switches), default="EAGLE-3")

    @classmethod
    def for_target(
        cls,
        target: DecoderConfig,
        draft_vocab_size: int,
        *,
        switches: Collection[str] = (),
        sizes: HeadOptions = HeadOptions(),
    ) -> HeadConfig:
        """A head as wide as its target; context length and RoPE are inherited too. `switches`: those that are on."""
        return cls(
            hidden_size=target.hidden_size,
            **sizes.complete(target)._asdict(),
            rms_norm_eps=target.rms_norm_eps,
            rope_theta=target.rope_theta,
            rope_scaling=target.rope_scaling,
            max_position_embeddings=target.own_positions,
            vocab_size=target.vocab_size,
            draft_vocab_size=draft_vocab_size,
            target_hidden_size=target.hidden_size,
            **dict.fromkeys(switches, True),
        )


@dataclass
class HeadWeights:
    """All tensors of a head. H hidden size, Ht the target's, Vd draft vocabulary, V the target's."""

    fc: Tensor  # [H, 3 * Ht]
    hidden_norm: Tensor  # [H], on the hidden state
    input_norm: Tensor  # [H], on the embedding
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, 2 * H], columns: embedding, then hidden state
    o: Tensor  # [H, heads * head_dim]
    post_norm: Tensor  # [H]
    gate_up: Tensor  # [2 * I, H], gate rows first
    down: Tensor  # [H, I]
    norm: Tensor  # [H]
    lm_head: Tensor  # [Vd, H]
    d2t: Tensor  # [Vd] int64, offsets: target id = draft id + d2t[draft id]
    embedding: Tensor | None = None  # [V, H]; None: the target's
    fc_norms: Tensor | None = None  # [3, Ht], only with config.fc_norm
    # Estimates of the lm_head's scores, only with config.candidates: lm_head ~ candidate_up @ candidate_down.
    candidate_up: Tensor | None = None  # [Vd, r]
    candidate_down: Tensor | None = None  # [r, H]

    def trainable(self) -> dict[str, Tensor]:
        """The trained tensors by name: all but the vocabulary map, the embedding and the lm_head's estimates."""
        named = {name: getattr(self, name) for name, info in TENSORS.items() if not info.frozen}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def vectors(self) -> dict[str, Tensor | None]:
        """The trained tensors that aren't drawn as matrices: norms and the like; None for one that is switched off."""
        return {name: getattr(self, name) for name, info in TENSORS.items() if info.initial is not None}

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> HeadWeights:
        """The same weights in another dtype; the vocabulary map stays int64."""
        numbers = {name: getattr(self, name) for name in TENSORS if name != "d2t"}
        changed = {name: t.to(device, dtype) for name, t in numbers.items() if t is not None}
        return replace(self, **changed, d2t=self.d2t.to(device))


def _norm(name: str) -> TensorInfo:
    return TensorInfo((name,), lambda c: (c.hidden_size,), initial=1.0)


_NEWER = ("sglang", "specforge", "eagle", "vllm", "speculators", "eagle4")  # forms that know EAGLE-3.1
# By field of HeadConfig. Kernels know them as bits, in this order.
SWITCHES: Mapping[str, Switch] = {
    "fc_norm": Switch("EAGLE-3.1: a norm on each of the three features", "EAGLE-3.1", _NEWER),
    "norm_output": Switch("EAGLE-3.1: pass on the output after the final norm", "EAGLE-3.1", _NEWER),
    "norm_before_residual": Switch(
        "speculators: the residual is the hidden state after hidden_norm",
        forms=("vllm", "speculators", "gguf"),
        trainable=False,
    ),
}
# By field of HeadWeights. Kernels get those with an initial value, in this order.
TENSORS: Mapping[str, TensorInfo] = {
    "fc": TensorInfo(("fc.weight",), lambda c: (c.hidden_size, 3 * c.target_hidden_size)),
    "hidden_norm": _norm(f"{LAYER}.hidden_norm.weight"),
    "input_norm": _norm(f"{LAYER}.input_layernorm.weight"),
    "qkv": TensorInfo(
        tuple(f"{LAYER}.self_attn.{name}_proj.weight" for name in "qkv"),
        lambda c: (c.qkv_size, 2 * c.hidden_size),
        lambda c: [count * c.head_dim for count in (c.num_heads, c.num_kv_heads, c.num_kv_heads)],
    ),
    "o": TensorInfo(
        (f"{LAYER}.self_attn.o_proj.weight",), lambda c: (c.hidden_size, c.num_heads * c.head_dim)
    ),
    "post_norm": _norm(f"{LAYER}.post_attention_layernorm.weight"),
    "gate_up": TensorInfo(
        tuple(f"{LAYER}.mlp.{name}_proj.weight" for name in ("gate", "up")),
        lambda c: (2 * c.intermediate_size, c.hidden_size),
    ),
    "down": TensorInfo((f"{LAYER}.mlp.down_proj.weight",), lambda c: (c.hidden_size, c.intermediate_size)),
    "norm": _norm("norm.weight"),
    "lm_head": TensorInfo(("lm_head.weight",), lambda c: (c.draft_vocab_size, c.hidden_size)),
    "d2t": TensorInfo(("d2t",), lambda c: (c.draft_vocab_size,), frozen=True),
    "embedding": TensorInfo(("embed_tokens.weight",), lambda c: (c.vocab_size, c.hidden_size), frozen=True),
    "fc_norms": TensorInfo(
        tuple(f"fc_norm.{i}.weight" for i in range(3)),
        lambda c: (3, c.target_hidden_size),
        switch="fc_norm",
        initial=1.0,
        stacked=True,
    ),
    # EAGLE-4's names. They are made from the lm_head (train/candidates.py).
    "candidate_up": TensorInfo(
        ("efficient_lm_head.weight",),
        lambda c: (c.draft_vocab_size, c.candidate_rank),
        switch="candidates",
        frozen=True,
    ),
    "candidate_down": TensorInfo(
        ("efficient_lm_head_down_proj.weight",),
        lambda c: (c.candidate_rank, c.hidden_size),
        switch="candidates",
        frozen=True,
    ),
}


def trained(config: HeadConfig) -> dict[str, TensorInfo]:
    """The trained tensors of a head of this config."""
    return {
        name: info
        for name, info in TENSORS.items()
        if not info.frozen and (not info.switch or getattr(config, info.switch))
    }


def weight_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every trained weight, by its name in HeadWeights."""
    return {name: info.shape(config) for name, info in trained(config).items()}


def initial_vectors(config: HeadConfig) -> dict[str, Tensor]:
    """The trained tensors of a new head that aren't drawn, by name, float32."""
    import torch

    return {
        name: torch.full(info.shape(config), info.initial)
        for name, info in trained(config).items()
        if info.initial is not None
    }


def check_weights(config: HeadConfig, w: HeadWeights) -> None:
    """Raise a HeadError unless these weights are a head of this config."""
    import torch

    expected = weight_shapes(config) | {"d2t": (config.draft_vocab_size,)}
    if w.embedding is not None:
        expected["embedding"] = TENSORS["embedding"].shape(config)
    if config.candidates > config.draft_vocab_size:
        raise HeadError(
            f"the head has {config.candidates} candidates of {config.draft_vocab_size} tokens: write fewer into its "
            "config.json"
        )
    if config.candidates:
        expected |= {name: TENSORS[name].shape(config) for name in CANDIDATE_TENSORS}
    for name, shape in expected.items():
        tensor: Tensor | None = getattr(w, name)
        if tensor is None or tuple(tensor.shape) != shape:
            actual = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
            raise HeadError(f"the head's {name} is {actual}, but its config says {shape}: get the head again")
    ids = w.d2t + torch.arange(config.draft_vocab_size, device=w.d2t.device)
    if bool((ids < 0).any()) or bool((ids >= config.vocab_size).any()):
        raise HeadError(
            f"the head's d2t points outside a vocabulary of {config.vocab_size}; it must hold offsets, "
            "not ids: export the head again"
        )
