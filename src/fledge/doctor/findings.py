"""The doctor's findings, by name, so that scripts and tests can distinguish them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Progress = Callable[[float, float, str], None]  # steps done, total, next step

Fault = Literal[
    "target",  # sizes or vocabulary of another target
    "template",  # another chat template or special tokens than in training
    "layers",  # features of other layers, or counted by the other convention
    "vocabulary-map",  # d2t isn't offsets, or points outside the vocabulary
    "vocabulary-order",  # draft ids shuffled against t2d or against the rows of lm_head
    "missing-tensor",
    "missing-norm",
    "gate-up",  # the MLP's gate and up projections swapped
    "qkv-halves",  # the attention's inputs, embedding and hidden state, swapped
    "qkv-order",  # q, k and v under each other's names
    "fc-order",  # features taken in another order
    "norm",  # a norm saved in another convention, swapped, or lost
    "rotary-order",  # rows of q and k in the interleaved order
    "head-order",  # query heads grouped in another way
    "head-dim",
    "transposed",
    "eps",
    "switch",  # a switch of the config that changes the computation
    "embedding",  # the head's own isn't the target's
    "lm-head",
    "damaged",  # a part of the head does harm
    "rope",
    "context",
    "float16",
    "accepts-nothing",  # without another fault that explains it
    "low",  # less than the head's size and data promise
    "values",  # not-a-number or infinite weights
    "engine",  # a trap of the given engine
    "served-prompt",  # the served engine builds another prompt
    "served-tau",  # the served engine accepts less than ours
    "unreadable",
]


@dataclass(frozen=True)
class Defect:
    """A fault that costs acceptance, and its remedy."""

    fault: Fault
    what: str
    remedy: str
    certain: bool = True  # False: likely, for the reason given in `what`


@dataclass(frozen=True)
class Measured:
    """A measured figure."""

    name: str
    value: str


@dataclass
class Steps:
    """The steps of an examination, reported to a progress bar."""

    report: Progress
    total: int
    done: int = 0

    def next(self, note: str) -> None:
        """Start a step; the previous one is done."""
        self.report(self.done, self.total, note)
        self.done += 1

    def part(self, share: float, note: str) -> None:
        """Report which share of the current step is done."""
        self.report(self.done - 1 + share, self.total, note)
