"""Recording of served requests for learning: the hidden states of their tokens, as they are computed.

No forward is repeated: a prefill's features and the states along accepted paths are copied as rounds end.

    position    start ....... n - 1 | n ................. n + m - 2 | n + m - 1
    token       prompt              | answer                        | its last token, which no forward has read
    states      features            | features and lm_head's input  | none

The prompt's are those of its last positions, as far as a forward has read them: the prefix cache may have had the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fledge.engine.params import SamplingParams
from fledge.engine.rounds.result import Drafts

_PROMPT = 512  # positions of a prompt, its last ones, whose features are kept


class Recorded(NamedTuple):
    """A finished request. n prompt positions have features, m tokens of an answer follow."""

    group: str  # whose traffic it is
    token_ids: list[int]  # [n + m]
    prompt_features: Tensor  # [n, 3 * Ht]
    answer_states: Tensor  # [m - 1, 4 * Ht], features and the lm_head's input
    greedy: bool  # each of the answer's tokens is the target's most probable one


class Recorder(Protocol):
    """Gets what requests leave."""

    def before_step(self) -> None:
        """A step is about to begin; requests wait until this returns."""

    def finished(self, tape: Tape, token_ids: Sequence[int]) -> None:
        """A request has ended. Called within a step: be quick."""


@dataclass
class Tape:
    """Collects one request's states."""

    group: str
    prompt_tokens: int
    greedy: bool
    accepted: int = 0  # of the head's drafts, in the rounds that no proposal joined
    rounds: int = 0  # these
    _prompt: list[Tensor] = field(default_factory=list)
    _answer: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, group: str, prompt_tokens: int, params: SamplingParams) -> Tape:
        """A request's that is decoded with `params`."""
        edited = params.penalizes or params.logit_bias or params.structured_outputs or params.min_tokens
        return cls(group, prompt_tokens, greedy=params.temperature == 0 and not edited)

    @property
    def bytes(self) -> int:
        """Memory of the states so far."""
        return sum(part.numel() * part.element_size() for part in (*self._prompt, *self._answer))

    def prefilled(self, start: int, features: Tensor) -> None:
        """A forward has read the prompt's positions from `start` on: features [n, 3 * Ht]."""
        wanted = features[max(self.prompt_tokens - _PROMPT - start, 0) :]
        if len(wanted):
            self._prompt.append(wanted.clone())

    def decoded(self, states: Tensor) -> None:
        """A round's accepted path: [n, 4 * Ht]."""
        self._answer.append(states.clone())

    def drafted(self, accepted: int) -> None:
        """A round of the head's drafts alone; so many of them were accepted."""
        self.accepted += accepted
        self.rounds += 1

    def recorded(self, token_ids: Sequence[int]) -> Recorded | None:
        """The recording; `token_ids`: the request's prompt and answer. None if too little was read to learn from."""
        answer = len(token_ids) - self.prompt_tokens
        if not self._prompt or not self._answer or answer < 2:
            return None
        prompt = torch.cat(self._prompt)
        states = torch.cat(self._answer)[: answer - 1]  # what came after the answer's end isn't part of it
        if len(states) < answer - 1:
            return None
        first = self.prompt_tokens - len(prompt)
        return Recorded(self.group, list(token_ids[first:]), prompt, states, self.greedy)


def joined(drafted: Drafts, requests: int) -> list[bool]:
    """Per request, whether a proposal joined the head's drafts in this round."""
    if drafted.proposal is None:
        return [False] * requests
    joins: list[bool] = (drafted.proposal.token_ids >= 0).any(1).tolist()
    return joins
