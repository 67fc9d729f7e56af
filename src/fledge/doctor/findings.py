"""What the doctor says: findings by name, so that scripts and tests can tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Progress = Callable[[float, float, str], None]  # steps done, of how many, what comes next

Fault = Literal[
    "target",  # sizes or vocabulary of another target
    "template",  # another chat template or special tokens than the head learnt with
    "revision",  # other weights or tokenizer than the head learnt from
    "layers",  # features of other layers, or counted by the other convention
    "vocabulary-map",  # d2t isn't offsets, or leads outside the vocabulary
    "vocabulary-order",  # draft ids shuffled against t2d or against the rows of lm_head
    "missing-tensor",
    "missing-norm",
    "gate-up",  # the MLP's gate and up projections swapped
    "rope",
    "context",
    "float16",
    "accepts-nothing",  # and no other fault explains it
    "values",  # not-a-number or infinite weights
    "engine",  # a trap of the engine asked about
    "served-prompt",  # the served engine builds another prompt
    "served-tau",  # the served engine accepts less than ours
    "unreadable",
]


@dataclass(frozen=True)
class Finding:
    """One thing that costs acceptance, and what to do about it."""

    fault: Fault
    what: str
    remedy: str
    certain: bool = True  # False: likely, for a reason that stands in `what`


@dataclass(frozen=True)
class Measured:
    """What was measured on the way."""

    name: str
    value: str


@dataclass
class Steps:
    """The steps of an examination, told to a progress bar."""

    tell: Progress
    total: int
    done: int = 0

    def next(self, note: str) -> None:
        """Say what is begun now; what was begun before is done."""
        self.tell(self.done, self.total, note)
        self.done += 1

    def part(self, share: float, note: str) -> None:
        """Say how much of what was begun last is done."""
        self.tell(self.done - 1 + share, self.total, note)
