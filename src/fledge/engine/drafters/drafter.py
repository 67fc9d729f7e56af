"""Interface between a round and whatever proposes tokens: `Drafter`, and the `Candidates` that it proposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fledge.base.device import to_device
from fledge.draft.tree import DraftTree
from fledge.engine.batch import Member, RunningBatch
from fledge.engine.drafters.proposal import Proposal
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.rounds.tree import Accepted
from fledge.target.batch import ForwardBatch

if TYPE_CHECKING:
    from fledge.target.target import Target


class Candidates(NamedTuple):
    """C tokens proposed for each of B requests, numbered from 1 on, parents before children; 0 is the root.

    A round verifies the most probable of them. All requests have candidates of the same depths; one that isn't there
    is token -1 with log probability -inf.
    """

    token_ids: Tensor  # [B, 1 + C] int64; the root is the request's bonus token
    parents: Tensor  # [B, 1 + C] int64, candidate numbers; the root's is 0
    depths: Tensor  # [1 + C] int64; the root's is 0
    log_probs: Tensor  # [B, C] float32, cumulative from the root, so never above the parent's
    # For the planner: these log probabilities by level that was drafted, [B, C_d] each, and what lookup proposed.
    levels: Sequence[Tensor] = ()
    proposal: Proposal | None = None
    sources: Tensor | None = None  # [B, 1 + C] int64, who proposed each (`Source`); None: this drafter

    @classmethod
    def chains(cls, root: Tensor, proposed: Sequence[Sequence[tuple[int, float]]]) -> Candidates:
        """For each request, a chain below its bonus token, `root` [B]: token ids and their probabilities.

        A probability is the drafter's own estimate that the token is right if those before it are.
        """
        width, device = max(map(len, proposed), default=0), root.device
        tokens = torch.full((len(proposed), width), -1)
        log_probs = torch.full((len(proposed), width), -torch.inf)
        for row, chain in enumerate(proposed):
            tokens[row, : len(chain)] = torch.tensor([token for token, _ in chain], dtype=torch.int64)
            log_probs[row, : len(chain)] = torch.tensor([chance for _, chance in chain]).log().cumsum(0)
        number = torch.arange(width + 1, device=device)
        parents = (number - 1).clamp(min=0).expand(len(proposed), -1)
        proposed_ids, scores = to_device(device, tokens.numpy(), log_probs.numpy())
        ids = torch.cat((root[:, None], proposed_ids), 1)
        return cls(ids, parents, number, scores, scores.split(1, 1) if width else ())

    def select(self, nodes: int, reach: int) -> DraftTree:
        """The trees of the nodes - 1 best candidates each, root first, parents before children; `reach` levels deep.

        A child is never more probable than its parent, and a stable sort prefers lower numbers: trees are connected.
        """
        too_deep = self.depths > reach
        log_probs = self.log_probs.masked_fill(too_deep[1:], -torch.inf)
        order = log_probs.sort(dim=1, descending=True, stable=True).indices[:, : nodes - 1]
        chosen = torch.nn.functional.pad((order + 1).sort(1).values, (1, 0))  # [B, N] candidate numbers
        parents = torch.searchsorted(chosen, self.parents.gather(1, chosen))
        mask, ancestor = node_bits(chosen.shape[1], chosen.device).expand_as(chosen), parents
        for _ in range(reach.bit_length()):  # a mask covers 1, 2, 4, ... generations
            mask = mask | mask.gather(1, ancestor)
            ancestor = ancestor.gather(1, ancestor)
        parents[:, 0].fill_(-1)
        return DraftTree(
            token_ids=self.token_ids.masked_fill(too_deep, -1).gather(1, chosen),
            parents=parents,
            depths=self.depths.clamp(max=reach)[chosen],
            window_mask=mask,
            log_probs=torch.nn.functional.pad(log_probs, (1, 0)).gather(1, chosen),
            sources=torch.zeros_like(chosen) if self.sources is None else self.sources.gather(1, chosen),
        )


def node_bits(nodes: int, device: torch.device) -> Tensor:
    """[N] int64, each node's bit of a mask."""
    return torch.ones((), dtype=torch.int64, device=device) << torch.arange(nodes, device=device)


class Prompts(NamedTuple):
    """Chunks of prompts that the target has read, end to end, R rows in all."""

    rows: ForwardBatch
    following: Tensor  # [R] int64, the token after each row
    features: Tensor | None  # [R, 3 * H]
    starts: Sequence[int]  # by chunk, the position that the drafter's history begins at
    stops: Sequence[int]  # and the one after the chunk's last
    sizes: Sequence[int]  # and its rows


class Drafter:
    """Proposes tokens for the running requests. All methods but `propose` may be left as they are."""

    name = ""  # in statistics; empty: the class's
    features = False  # whether it reads the target's features
    remembers: int | None = None  # positions of a request that it can catch up on, at most; None: all
    vocabulary: int | None = None  # tokens that it can propose, at most; None: all
    recordable = False  # whether its rounds can be CUDA graphs: proposing exchanges no value with the host

    def start(self, target: Target) -> None:
        """Called once, before the first request: for the tokenizer, say."""

    def propose(self, batch: RunningBatch, plan: RoundPlan) -> Candidates:
        """Candidates for all running requests, no deeper than `plan.bound.reach`."""
        raise NotImplementedError

    def follow(self, batch: RunningBatch, accepted: Accepted, features: Tensor | None) -> None:
        """A round ends that it drafted: the paths, and the features [B * (D + 1), 3 * H] along them.

        Called before the batch goes on: `batch.view()` is as it was when it proposed.
        """

    def rest(self, batch: RunningBatch, tokens: Tensor, features: Tensor | None) -> None:
        """A plain round passes: one token for each request [B], and the features [B, 3 * H] of the one before it."""

    def fell_behind(self, counts: Sequence[int]) -> None:
        """A round has passed without it, in which each request got so many tokens [B]. For the host's records."""

    def behind(self, size: int) -> tuple[list[int], list[bool]]:
        """By row, the positions it has yet to read, and whether it left some out for good."""
        return [0] * size, [False] * size

    def catch_up(self, batch: RunningBatch) -> None:
        """Read what it left out; called before it is going to propose again."""

    def prefill(self, prompts: Prompts) -> object:
        """Read parts of prompts; what it returns, `join` gets."""

    def join(self, prompts: Prompts, chunks: Sequence[int], first: int, read: object) -> None:
        """The requests of these `chunks` have got the batch's rows from `first` on.

        `read` is what `prefill` returned; None: it was left out, and they have to be caught up on.
        """

    def append(self, row: int, request: Member, pages: Sequence[int], bonus: Tensor) -> None:
        """A request gets a row of the batch."""

    def remove(self, row: int, last: int) -> None:
        """Row `row` is free; row `last`, the last one, moves there."""

    def clear(self) -> None:
        """Free all rows."""

    def enter_pages(self, row: int, start: int, pages: Sequence[int]) -> None:
        """A request gets more pages of the KV pool, from number `start` on."""

    def settle(self, requests: int, rows: int) -> None:
        """A recorded round of `rows` rows runs next; those from `requests` on are padding, which owns no pages."""
