"""Counts and timings of an engine's work so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fledge.engine.drafters.proposer import ProposerStats
from fledge.engine.phases import PhaseSeconds
from fledge.engine.shapes import TreeShape


@dataclass
class PlannedShape:
    """Results of the rounds of one shape."""

    shape: TreeShape
    rounds: int = 0
    requests: int = 0  # summed over the rounds
    tokens: int = 0
    seconds: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens per round and request."""
        return self.tokens / self.requests if self.requests else 1.0


@dataclass(frozen=True)
class EngineStats:
    """Statistics of an engine's work so far."""

    rounds: int
    request_rounds: int  # rounds, counted once for every request in them
    round_tokens: int  # emitted by rounds, over all requests
    prompt_tokens: int  # prefilled, again after a preemption
    preemptions: int
    hit_tokens: int  # neither prefilled nor counted in prompt_tokens: the prefix cache had them
    evictions: int  # pages of the prefix cache given to others
    pages: int  # the KV pool's
    pages_in_use: int  # by requests
    pages_cached: int  # by no request, kept for the prefix cache
    drafts: int  # trees proposed, one per speculating request and round
    draft_tokens: int  # their nodes, roots left out
    accepted_by_depth: list[int]  # [d - 1]: trees whose accepted path reached depth d
    accepted_by_source: dict[str, int]  # the same tokens by who proposed them: "head", "lookup", ...
    running: int  # requests being decoded or prefilled now
    waiting: int  # requests the engine has queued
    kv_usage: float  # share of the KV pool's pages in use
    phases: PhaseSeconds  # `host` and `hidden` over `rounds`: exposed and hidden host time per round
    shapes: list[PlannedShape]  # the trees that were verified and what came of them, most used first
    proposers: Mapping[str, ProposerStats]  # what proposes beside the head, by name

    @property
    def tau(self) -> float:
        """Tokens per round and request, bonus token included."""
        return self.round_tokens / self.request_rounds if self.request_rounds else 1.0


class Counts:
    """Counters of rounds and their draft trees."""

    def __init__(self) -> None:
        self.rounds = self.request_rounds = self.round_tokens = self.prompt_tokens = 0
        self.drafts = self.draft_tokens = 0
        self.accepted_by_depth: list[int] = []
        self.accepted_by_source = Counter[str]()
        self._shapes: dict[TreeShape, PlannedShape] = {}

    def count_shape(self, shape: TreeShape, requests: int, tokens: int, seconds: float) -> None:
        """Record a round by the shape of its trees; PLAIN: nothing was proposed."""
        record = self._shapes.setdefault(shape, PlannedShape(shape))
        record.rounds += 1
        record.requests += requests
        record.tokens += tokens
        record.seconds += seconds

    def shapes_used(self) -> list[PlannedShape]:
        """Shapes used, with their results, most used first."""
        return sorted(self._shapes.values(), key=lambda record: -record.rounds)

    def count_drafts(self, shape: TreeShape, depths: Sequence[int], nodes: int) -> None:
        """Record a round's trees, `nodes` in all; `depths` are the accepted ones of the requests that speculated."""
        self.drafts += len(depths)
        self.draft_tokens += nodes
        self.accepted_by_depth += [0] * (shape.reach - len(self.accepted_by_depth))
        for depth in depths:
            for index in range(depth):
                self.accepted_by_depth[index] += 1
