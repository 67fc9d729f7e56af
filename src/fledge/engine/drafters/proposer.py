"""Proposals of one's own beside a head: a `Proposer` says how a request may go on, and its chain joins the head's tree.

    head's tree     on - the - rug              as with prompt lookup, whose place in the tree
    a proposer      on - the - mat - and        it takes where it is surer (see `merge.py`)

Whatever it proposes, answers stay the target's own. What it says of its tokens' probabilities is corrected by what
comes true, as a factor for each proposer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.proposal import Proposal, Source

if TYPE_CHECKING:
    from fledge.engine.drafters.drafter import Drafter
    from fledge.engine.params import SamplingParams
    from fledge.engine.request import Request
    from fledge.target.target import Target

logger = logging.getLogger("fledge")

_SEEN_AT_FIRST = 8.0  # tokens that a proposer's own word is worth
_MOST_SEEN = 200.0  # so that old observations decay
_SUREST, _LEAST_CHANCE = 0.99, 1e-6
_LEAST_FACTOR = 0.01  # of a proposer that is always wrong


class RunningText(NamedTuple):
    """A request as a proposer sees it."""

    request_id: int
    token_ids: list[int]  # prompt and answer so far
    prompt_tokens: int  # of these, the prompt's
    params: SamplingParams
    seed: int


class Proposer:
    """Proposes how running requests go on, beside a head. Called from the engine's thread."""

    name = ""  # in statistics; empty: the class's

    def start(self, target: Target) -> None:
        """Called once, before the first request: for the tokenizer, say."""

    def propose(self, text: RunningText, tokens: int) -> Sequence[tuple[int, float]]:
        """Up to `tokens` next tokens, each with the probability that it is right if those before it are.

        An exception costs this proposer's tokens of the round, and a line in the log.
        """
        raise NotImplementedError


@dataclass
class ProposerStats:
    """Counts of one proposer."""

    asked: int = 0  # times, once for each request and round
    proposed: int = 0  # tokens that were offered to the head's trees
    accepted: int = 0  # of these, whether or not the head proposed them, too
    failed: int = 0  # exceptions


class _Asked:
    """A proposer, what it has done, and what its word is worth."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer, self.stats = proposer, ProposerStats()
        self.name = proposer.name or type(proposer).__name__
        self._claimed = self._came_true = _SEEN_AT_FIRST

    @property
    def factor(self) -> float:
        """By which its probabilities are multiplied."""
        return max(self._came_true / self._claimed, _LEAST_FACTOR)

    def ask(self, text: RunningText, tokens: int, vocabulary: int) -> list[tuple[int, float]]:
        """Its tokens with corrected probabilities; none if it fails."""
        self.stats.asked += 1
        try:
            chain = [(int(token), float(chance)) for token, chance in self.proposer.propose(text, tokens)]
            if any(not (0 <= token < vocabulary and 0.0 < chance <= 1.0) for token, chance in chain):
                raise ValueError(f"{chain} isn't a list of (token below {vocabulary}, probability above 0)")
        except Exception:
            self.stats.failed += 1
            if self.stats.failed == 1:
                logger.exception("%s failed, and is asked again; later failures aren't logged", self.name)
            return []
        corrected = ((token, chance * self.factor) for token, chance in chain[:tokens])
        return [(token, min(max(chance, _LEAST_CHANCE), _SUREST)) for token, chance in corrected]

    def judge(self, chances: Sequence[float], right: int) -> None:
        """Its first `right` tokens came true, and the next one, if there are more, didn't."""
        factor = self.factor  # as it was when they were proposed, or nearly
        for number, chance in enumerate(chances[: right + 1]):
            self._claimed += min(chance / factor, 1.0)
            self._came_true += number < right
        if self._claimed > _MOST_SEEN:
            self._came_true *= _MOST_SEEN / self._claimed
            self._claimed = _MOST_SEEN


def source_names(drafter: Drafter, proposers: Sequence[Proposer]) -> list[str]:
    """The names in statistics of all that propose, by `Source`; alike ones are numbered."""
    everyone: list[Drafter | Proposer] = [drafter, *proposers]
    own = [one.name or type(one).__name__ for one in everyone]
    names = [own[0], "lookup", "grammar", *own[1:]]
    earlier = [names[:number].count(name) for number, name in enumerate(names)]
    return [f"{name} {count + 1}" if count else name for name, count in zip(names, earlier, strict=True)]


class Proposers:
    """An engine's proposers, asked for each request of a round; moves with the batch's rows (`RowState`)."""

    def __init__(self, proposers: Sequence[Proposer], vocabulary: int, rows: int) -> None:
        self._sources = [_Asked(proposer) for proposer in proposers]
        self._vocabulary = vocabulary
        self._requests: list[Request | None] = [None] * rows

    def stats(self, names: Sequence[str]) -> dict[str, ProposerStats]:
        """Counts by the proposers' names, of those by `Source`."""
        return dict(zip(names[Source.PROPOSER :], (source.stats for source in self._sources), strict=True))

    def compete(self, found: Proposal, batch: RunningBatch) -> Proposal:
        """Prompt lookup's proposal, replaced where a proposer is surer of its first token."""
        now, limit = batch.view(), found.token_ids.shape[1]
        token_ids, log_probs, matched, sources = columns = [column.cpu().clone() for column in found]
        rows = batch.speculating().rows
        for row, length in enumerate(now.length.tolist()):
            request = self._requests[row]
            if request is None or (rows is not None and row not in rows):
                continue
            tokens = now.history[row, : length + 1].tolist()
            text = RunningText(request.id, tokens, len(request.prompt_ids), request.params, request.seed)
            surest = math.exp(float(log_probs[row, 0]))
            for number, source in enumerate(self._sources):
                chain = source.ask(text, limit, self._vocabulary)
                if not chain or chain[0][1] <= surest:
                    continue
                surest = chain[0][1]
                token_ids[row] = torch.tensor([token for token, _ in chain] + [-1] * (limit - len(chain)))
                chances = [math.log(chance) for _, chance in chain] + [-math.inf] * (limit - len(chain))
                log_probs[row], matched[row] = torch.tensor(chances), 0
                sources[row] = Source.PROPOSER + number
        return Proposal(*(column.to(batch.device) for column in columns))

    def observe(self, proposal: Proposal, rows: Sequence[Sequence[int]]) -> None:
        """Compare a proposal with the round's result; each row holds how many tokens were emitted, then the tokens."""
        for sources, proposed, log_probs, (count, *emitted) in zip(
            proposal.sources.tolist(),
            proposal.token_ids.tolist(),
            proposal.log_probs.tolist(),
            rows,
            strict=True,
        ):
            if sources[0] < Source.PROPOSER:
                continue
            source = self._sources[sources[0] - Source.PROPOSER]
            chain = [
                token
                for token, own in zip(proposed, sources, strict=True)
                if token >= 0 and own == sources[0]
            ]
            right = 0
            while right < min(len(chain), count) and chain[right] == emitted[right]:
                right += 1
            source.stats.proposed += len(chain)
            source.stats.accepted += min(right, max(count - 1, 0))  # the last one emitted is the target's own
            source.judge([math.exp(one) for one in log_probs[: min(len(chain), count)]], right)

    # RowState

    def append(self, row: int, request: Request, pages: Sequence[int], bonus: torch.Tensor) -> None:
        """See `RowState`."""
        self._requests[row] = request

    def remove(self, row: int, last: int) -> None:
        """See `RowState`."""
        self._requests[row], self._requests[last] = self._requests[last], None

    def clear(self) -> None:
        """See `RowState`."""
        self._requests = [None] * len(self._requests)

    def enter_pages(self, row: int, start: int, pages: Sequence[int]) -> None:
        """See `RowState`."""

    def settle(self, requests: int, rows: int) -> None:
        """See `SettledState`: no round with proposers is recorded."""
