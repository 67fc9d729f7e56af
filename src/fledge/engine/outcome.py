"""What the parts of a round hand on: `Drafts` from draft, `Accepted` from accept; and what a round ends with."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.logprobs import PathLogprobs
from fledge.engine.lookup import Proposal
from fledge.engine.native_round import VerifyRows
from fledge.engine.shapes import TreeShape


class Drafts(Protocol):
    """Draft trees ready for verify, and what is known of them: `Drafted`, or a `NativeDraft`."""

    @property
    def tree(self) -> DraftTree:
        """N nodes per request."""

    @property
    def shape(self) -> TreeShape:
        """The trees' shape, as it will be verified."""

    @property
    def levels(self) -> list[Tensor]:
        """Per drafted level: [B, C] cumulative log probabilities."""

    @property
    def proposal(self) -> Proposal | None:
        """From prompt lookup."""

    @property
    def counts(self) -> Tensor | None:
        """[B] int64, nodes of each request below the root; None: all have the shape's."""

    @property
    def ready(self) -> VerifyRows | None:
        """The rows of the verify, if they are laid out already."""


class Drafted(NamedTuple):
    """`Drafts` that were grown in Python."""

    tree: DraftTree
    shape: TreeShape
    levels: list[Tensor]
    proposal: Proposal | None
    counts: Tensor | None
    ready: VerifyRows | None = None


class Accepted(NamedTuple):
    """The accepted path of each request. Entries at and beyond `emits` mean nothing."""

    emits: Tensor  # [B] int64, nodes on the path, the root included: 1 .. D + 1
    path: Tensor  # [B, D + 1] int64, the node at each depth
    emitted: Tensor  # [B, D + 1] int64, what each node of the path chose: the accepted drafts, then the bonus token


class Outcome(NamedTuple):
    """What a speculative round did."""

    emitted: Tensor  # [B, 1 + D + 1] int64: how many tokens each request emits, then the tokens
    logprobs: PathLogprobs | None  # of those requests that want them
    drafted: Drafts
    shape: TreeShape  # as verified
    path: Tensor  # [B, D + 1] int64, the accepted nodes; what is beyond those emitted means nothing
    rows: int  # of all requests that were verified


class PlainOutcome(NamedTuple):
    """What a plain round did."""

    emitted: Tensor  # [B, 2] int64: 1, then the token
    logprobs: PathLogprobs | None
