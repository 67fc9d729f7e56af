"""A draft head made of memory instead of weights: it proposes what a script says follows the context it has seen.

Its KV holds token ids, and its hidden states name the context they came from. So besides scripting acceptance it
checks the engine's bookkeeping: every row must see exactly the tokens that lead up to it, at the right position, and a
draft step must get the hidden state of its parent.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from fledge.draft.race import Draws
from fledge.draft.runner import DraftOutput
from fledge.target.batch import ForwardBatch

HIDDEN = 4
Context = tuple[int, ...]  # x[1], x[2], ... (a head never sees x[0])


class ContextHead:
    """A `HeadRunner` whose proposals hold the true next token with probability `rate`, at a random rank."""

    def __init__(
        self, page_size: int, vocabulary: int, rate: float = 1.0, *, best_first: bool = False
    ) -> None:
        self.page_size = page_size
        self.config = SimpleNamespace(hidden_size=HIDDEN, draft_vocab_size=vocabulary, vocab_size=vocabulary)
        self.rate = rate
        self.best_first = best_first  # the true token, if proposed, has rank 0 and nearly all the probability
        self.truth: dict[Context, int] = {}
        self.sequences: list[Context] = []
        self.restarts = 0  # rows whose context began at a later page than the first
        # Off while costs are measured, past the last position, and where requests don't speculate: nobody looks then.
        self.strict = True

    def learn(self, sequences: Iterable[Sequence[int]]) -> None:
        """Remember what follows what in these sequences (prompt and answer)."""
        for tokens in sequences:
            self.sequences.append(tuple(tokens[1:]))
            for end in range(2, len(tokens)):
                self.truth[tuple(tokens[1:end])] = tokens[end]

    def allocate_kv(self, pages: int) -> Tensor:
        return torch.full((pages * self.page_size,), -1, dtype=torch.int64)

    def kv_bytes_per_token(self) -> int:
        return 8

    def forward(
        self,
        batch: ForwardBatch,
        kv: Tensor,
        *,
        features: Tensor | None,
        hidden: Tensor | None,
        k: int,
        draws: Draws | None = None,
    ) -> DraftOutput:
        assert (features is None) != (hidden is None)
        contexts = self._contexts(batch, kv)
        out_hidden = torch.zeros(len(contexts), HIDDEN)
        for row, context in enumerate(contexts):
            if context is None:
                continue
            out_hidden[row, 0] = _name(context)
            if hidden is not None and self.strict:
                assert hidden[row, 0].item() == _name(context[:-1]), (
                    "a draft step got another node's hidden state"
                )
        wanted = range(len(contexts)) if batch.logit_rows is None else batch.logit_rows.tolist()
        positions = batch.positions.tolist()
        proposals = [self._propose(self._whole(contexts[row], positions[row]), k) for row in wanted]
        return DraftOutput(
            token_ids=torch.tensor([tokens for tokens, _ in proposals]).view(-1, k),
            log_probs=torch.tensor([scores for _, scores in proposals]).view(-1, k),
            hidden=out_hidden[list(wanted)],
        )

    def _contexts(self, batch: ForwardBatch, kv: Tensor) -> list[Context | None]:
        """The tokens each row sees; None for rows beyond the accepted path, whose context means nothing."""
        contexts: list[Context | None] = []
        memory, table, size = kv.numpy(), batch.page_table.numpy(), self.page_size
        starts, positions = batch.row_start.tolist(), batch.positions.tolist()
        for request, prefix in enumerate(batch.prefix_length.tolist()):
            rows = starts[request + 1] - starts[request]
            index = np.arange(min(prefix + 64 + rows, table.shape[1] * size))
            slots = table[request, index // size] * size + index % size
            for row in range(starts[request], starts[request + 1]):
                own = prefix + int(batch.window_offset[request]) + row - starts[request]
                memory[slots[own]] = int(batch.token_ids[row])
                if batch.window_mask is None:
                    seen = slots[: own + 1]
                else:
                    mask = int(batch.window_mask[row])
                    window = [j for j in range(64) if (mask >> j) & 1]
                    assert own - prefix in window
                    seen = np.concatenate((slots[:prefix], slots[[prefix + j for j in window]]))
                context = tuple(memory[seen].tolist())
                if self.strict:
                    start = positions[row] + 1 - len(context)
                    assert start >= 0, "a row stands at the wrong position"
                    assert start % size == 0, "a head restarted inside a page"
                    self.restarts += start > 0
                    assert -1 not in context, "a row sees KV that was never written"
                contexts.append(context)
        return contexts

    def _whole(self, context: Context | None, position: int) -> Context | None:
        """The context from the first token on, for a head that restarted in the middle."""
        missing = 0 if context is None else position + 1 - len(context)
        if context is None or missing <= 0:
            return context
        whole = (s[: position + 1] for s in self.sequences if s[missing : position + 1] == context)
        return next(whole, context)

    def _propose(self, context: Context | None, k: int) -> tuple[list[int], list[float]]:
        rng = random.Random(repr(context))
        tokens = rng.sample(range(self.config.vocab_size), k)
        true = self.truth.get(context) if context is not None else None
        if true is not None:
            tokens = [token for token in tokens if token != true][: k - 1]
            other = next(token for token in range(self.config.vocab_size) if token not in (*tokens, true))
            proposed = true if rng.random() < self.rate else other
            tokens.insert(0 if self.best_first else rng.randrange(k), proposed)
        scores = sorted((-rng.random() * 3 - 1e-3 for _ in range(k)), reverse=True)
        if self.best_first:
            scores = [-0.01, *(score - 5 for score in scores[1:])]
        return tokens, scores


def _name(context: Context) -> float:
    return float(hash(context) % (1 << 20))
