"""The target's part of a round: verify, commit, and what is done with logits."""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.batch import Carried
from fledge.engine.forwards import TargetForward
from fledge.engine.logprobs import PathLogprobs, path_logprobs
from fledge.engine.rounds.tree import Accepted, Verified
from fledge.engine.selection import SelectionRows
from fledge.target.batch import ForwardBatch


class Verifier:
    """The target over windows of the running requests."""

    def __init__(self, target: TargetForward, selection: SelectionRows) -> None:
        self.target, self.selection = target, selection
        self.records = False  # whether the states along accepted paths are handed out, for a recorder

    def verify(self, now: Carried, tree: DraftTree, *, chain: bool, features: bool) -> Verified:
        """One forward over the trees' B * N nodes, each of which chooses the next token."""
        requests, nodes = tree.token_ids.shape
        last = self.target.decoder.config.vocab_size - 1
        return self.choose(
            now,
            tree,
            # An empty node is never accepted, nor one whose token the target doesn't have.
            tokens=tree.token_ids.clamp(0, last).to(torch.int32).view(-1),
            positions=(now.length[:, None] + tree.depths).view(-1).to(torch.int32),
            row_start=torch.arange(requests + 1, dtype=torch.int32, device=now.length.device) * nodes,
            mask=None if chain else tree.window_mask.reshape(-1),
            features=features,
        )

    def choose(
        self,
        now: Carried,
        tree: DraftTree,
        *,
        tokens: Tensor,
        positions: Tensor,
        row_start: Tensor,
        mask: Tensor | None,
        features: bool,
        picked: Tensor | None = None,
    ) -> Verified:
        """A forward over R rows of the trees, laid out; `picked` [R] int64: which of all nodes they are; None: all."""
        rows = ForwardBatch(
            token_ids=tokens,
            positions=positions.clamp(max=self.target.last_position),
            row_start=row_start,
            prefix_length=now.length,
            window_offset=torch.zeros_like(now.length),
            page_table=now.page_table,
            window_mask=mask,
        )
        nodes = tree.token_ids.shape[1]
        return self.target.choose_tokens(
            rows,
            positions + 1,
            selection=self.selection.selection(nodes),
            features=features or self.records,
            hidden=self.records,
            tree=None if nodes == 1 else tree,
            picked=picked,
        )

    def commit(self, now: Carried, path: Tensor) -> None:
        """Keys and values of the path's nodes [B, D + 1] go to L, L + 1, ..."""
        decoder, size = self.target.decoder, self.target.decoder.page_size
        steps = torch.arange(path.shape[1], device=path.device).expand_as(path)
        index = torch.stack((path, steps)) + now.length[:, None]  # [2, B, D + 1]: from, to
        page = now.page_table.expand(2, -1, -1).gather(2, index // size)
        source, destination = (page * size + index % size).view(2, -1)
        decoder.move_kv(self.target.kv, source, destination)

    def emit(self, verified: Verified, rows: Tensor, accepted: Accepted) -> PathLogprobs | None:
        """Count what is emitted, from these rows [B, D + 1]; its log probabilities, where they are wanted."""
        wanted, logprobs = self.selection.selection(1), None
        if wanted is not None and wanted.logprobs is not None and verified.logits is not None:
            # What is beyond a path may be no row, and have chosen no token.
            rows = rows.clamp(max=len(verified.logits) - 1)
            logprobs = path_logprobs(verified.logits, wanted.logprobs, rows, accepted.emitted.clamp(min=0))
        self.selection.count(accepted.emitted, accepted.emits)
        return logprobs
