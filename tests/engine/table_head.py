"""A fast draft head for statistics: what it proposes depends on the last token only, and is looked up."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from fledge.draft.race import Draws
from fledge.draft.runner import DraftOutput
from fledge.target.batch import ForwardBatch


class TableHead:
    """A `HeadRunner` over a table of likely next tokens by token; what isn't in it gets arbitrary proposals."""

    def __init__(
        self, page_size: int, vocabulary: int, topk: int, likely: dict[int, dict[int, float]]
    ) -> None:
        self.page_size = page_size
        self.config = SimpleNamespace(hidden_size=1, draft_vocab_size=vocabulary, vocab_size=vocabulary)
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.stack(
            [torch.randperm(vocabulary, generator=generator) for _ in range(vocabulary)]
        )
        self.tokens = self.tokens[:, :topk].contiguous()
        self.log_probs = torch.full((vocabulary, topk), -6.0) - torch.arange(topk)
        for token, following in likely.items():
            best = sorted(following.items(), key=lambda item: -item[1])[:topk]
            proposed = [next_token for next_token, _ in best]
            others = [other for other in range(vocabulary) if other not in proposed][: topk - len(best)]
            self.tokens[token] = torch.tensor(proposed + others)
            scores = [math.log(max(p, 1e-9)) for _, p in best] + [-30.0] * len(others)
            self.log_probs[token] = torch.tensor(scores)

    def allocate_kv(self, pages: int) -> Tensor:
        return torch.zeros(pages)

    def kv_bytes_per_token(self) -> int:
        return 1

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
        tokens = batch.token_ids.long()
        asked = tokens if batch.logit_rows is None else tokens[batch.logit_rows.long()]
        return DraftOutput(
            token_ids=self.tokens[asked, :k],
            log_probs=self.log_probs[asked, :k],
            hidden=torch.zeros(len(asked), 1),
        )
