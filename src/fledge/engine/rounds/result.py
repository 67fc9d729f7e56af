"""Result of a round, whichever backend ran it: `RoundResult`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.drafters.proposal import Proposal
from fledge.engine.logprobs import PathLogprobs
from fledge.engine.shapes import TreeShape


class Drafts(Protocol):
    """A round's draft trees, and what is known of them: `Drafted`, or a `NativeDraft`."""

    @property
    def tree(self) -> DraftTree:
        """N nodes for each of B requests."""

    @property
    def shape(self) -> TreeShape:
        """Shape of the trees as verified."""

    @property
    def levels(self) -> Sequence[Tensor]:
        """Per drafted level: [B, C] cumulative log probabilities."""

    @property
    def proposal(self) -> Proposal | None:
        """Prompt lookup's proposal."""

    @property
    def sizes(self) -> list[int]:
        """[B], nodes of each request below the root."""

    @property
    def sources(self) -> Tensor:
        """[B, N], who proposed each node."""

    @property
    def rows(self) -> int:
        """Number of rows verified, over all requests."""


class Drafted(NamedTuple):
    """`Drafts` of a fixed shape."""

    tree: DraftTree
    shape: TreeShape
    levels: Sequence[Tensor]
    proposal: Proposal | None

    @property
    def sizes(self) -> list[int]:
        """See `Drafts`; on a GPU, whose next round may have overwritten the trees, all nodes."""
        scores = self.tree.log_probs[:, 1:]
        return (scores > float("-inf")).sum(1).tolist() if scores.is_cpu else [scores.shape[1]] * len(scores)

    @property
    def sources(self) -> Tensor:
        """See `Drafts`."""
        return self.tree.sources

    @property
    def rows(self) -> int:
        """See `Drafts`."""
        return self.tree.token_ids.numel()


class RoundResult(NamedTuple):
    """The host's result of a round of B requests."""

    emitted: Tensor  # [B, 1 + W] int64: how many tokens each request emits, then the tokens
    logprobs: PathLogprobs | None  # of those requests that want them
    drafted: Drafts
    path: Tensor  # [B, W] int64, the accepted nodes; what is beyond those emitted means nothing
    pending: list[int]  # [B], positions each request's drafter is behind after the round
    restarted: list[bool]  # [B], drafters whose KV has a gap
    catch_up: float  # seconds, of the time the round took
    states: Tensor | None = None  # [B, W, 4 * Ht] for a recorder: features, lm_head's input
