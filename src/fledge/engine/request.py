"""One request from submission to completion, and what the engine says about it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.drafters.progress import DraftProgress
from fledge.engine.logprobs import TokenLogprob
from fledge.engine.params import SamplingParams
from fledge.engine.phases import PhaseSeconds
from fledge.engine.record import Tape
from fledge.engine.rounds.result import RoundResult
from fledge.engine.sampling import seed_key
from fledge.engine.stops import StopWatch
from fledge.engine.structured import Follower

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class CompletionStats:
    """Statistics of one answer. Times are milliseconds since the request was submitted."""

    tokens: int
    rounds: int  # verify forwards this request took part in; the prompt's own forward isn't one
    tau: float  # tokens emitted per round, bonus token included; 1.0 without speculation
    ttft_ms: float
    tpot_ms: float  # mean time per token after the first; 0 for a single token
    e2e_ms: float
    accepted_by_depth: list[int]  # [d - 1]: rounds whose accepted path reached depth d
    drafted_rounds: int  # rounds in which a tree was proposed: the denominator of accepted_by_depth
    token_origins: list[int]  # per token: 0 from the target itself, d an accepted draft of depth d
    phases: PhaseSeconds  # the engine's phases while this request was running, shared with its neighbours
    preemptions: int = 0
    cached_tokens: int = 0  # of the prompt, whose KV another request had left in the prefix cache
    # Per token: who proposed it ("head", "lookup", "grammar", or a drafter's name); empty: the target's own
    token_sources: list[str] = field(default_factory=list)

    @property
    def accepted_by_source(self) -> dict[str, int]:
        """Accepted drafts by who proposed them: what the head proposes is the head's, whoever else does."""
        return dict(Counter(filter(None, self.token_sources)))


@dataclass(frozen=True)
class Completion:
    """A finished answer. `token_ids` holds the stop token, or the tokens of the stop string; `text` doesn't."""

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    # "error": the grammar of a structured output is beyond llguidance's limits at this point of the answer
    finish_reason: FinishReason
    stats: CompletionStats
    # The stop string or the one of stop_token_ids; None: turn end, or length
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] | None = None  # per token, if requested
    prompt_logprobs: list[TokenLogprob] | None = None  # of the prompt's tokens but the first, if requested


@dataclass(frozen=True)
class TreeTrace:
    """A round's draft tree as one request saw it: N nodes, parents first; node 0 is the token before the round."""

    token_ids: list[int]
    parents: list[int]  # -1 for the root
    log_probs: list[float]  # the head's, cumulative from the root
    path: list[int]  # the accepted nodes, the root first
    sources: list[str] = field(default_factory=list)  # as in CompletionStats.token_sources; empty at the root


@dataclass(frozen=True)
class StepResult:
    """Tokens and state that one engine step added to one request."""

    request_id: int
    token_ids: list[int]
    origins: list[int]  # as in CompletionStats.token_origins
    completion: Completion | None  # set with the last tokens
    logprobs: list[TokenLogprob] | None = None  # per token, if requested
    # What became certain of a text with stop strings; None: no such, decode the tokens
    text: str | None = None
    tree: TreeTrace | None = None  # for requests submitted with `trace`, in rounds that drafted
    sources: list[str] = field(default_factory=list)  # as in CompletionStats.token_sources


Sink = Callable[[StepResult], None]


class Emitted(NamedTuple):
    """The tokens that a request took of those offered to it."""

    token_ids: list[int]
    origins: list[int]
    sources: list[str]
    logprobs: list[TokenLogprob] | None
    text: str | None  # as in StepResult


@dataclass(eq=False)
class Request:
    """A request inside the engine. Only the engine's own modules touch it."""

    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    speculate: bool
    sink: Sink | None
    watch: StopWatch | None = None  # set if there are stop strings
    trace: bool = False  # results carry the round's draft tree
    grammar: Follower | None = None  # at the answer's beginning; set if it has to have a form
    tape: Tape | None = None  # set if its states are recorded
    id: int = -1  # from when it is queued on; later ones have larger ones
    key: int = 0  # of the seed's coins
    row: int = -1  # in the running batch
    # The answer so far.
    output_ids: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)  # by position in the prompt
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    # Its pages, and what prefill has written of them.
    pages: list[int] = field(default_factory=list)
    page_keys: list[bytes] = field(default_factory=list)  # what full pages stand for (see `prefix.py`)
    shared_pages: int = 0  # of `pages`, the first ones, that others may use too
    prefix_tokens: int = 0  # where prefill started: all before it was in the prefix cache
    cached_tokens: int = 0  # the same for the prompt, when it was first prefilled
    prefilled: int = 0  # tokens of `context` whose KV is written
    prefill_length: int = 0  # len(context) when prefill started
    draft: DraftProgress = field(default_factory=DraftProgress)  # what its drafter has written of it
    # What is in flight will emit so many tokens:
    flying_least: int = 0  # at least,
    flying_most: int = 0  # and at most
    # For its statistics.
    submitted: float = field(default_factory=time.perf_counter)
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    rounds: int = 0
    round_tokens: int = 0  # emitted by rounds, not by prefill
    drafted_rounds: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    preemptions: int = 0
    phases_at_start: PhaseSeconds | None = None  # when its first forward was composed

    def __post_init__(self) -> None:
        self.key = seed_key(self.seed)
        self.prefill_length = len(self.prompt_ids)

    def context(self, start: int, stop: int) -> list[int]:
        """Tokens start..stop-1 of prompt and answer together."""
        prompt = len(self.prompt_ids)
        if stop <= prompt:
            return self.prompt_ids[start:stop]
        if start >= prompt:
            return self.output_ids[start - prompt : stop - prompt]
        return self.prompt_ids[start:] + self.output_ids[: stop - prompt]

    @property
    def draft_start(self) -> int:
        """Positions before it are none of the drafter's."""
        return self.draft.start

    @property
    def length(self) -> int:
        """Tokens of prompt and answer together."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def ends_in_flight(self) -> bool:
        """True if the work in flight is certain to emit the last token."""
        return len(self.output_ids) + self.flying_least >= self.params.max_tokens

    @property
    def ends_late(self) -> bool:
        """True if the tokens that end the answer can't be chosen at first."""
        return self.params.min_tokens > 0 and bool(self.stop_ids)

    def take_off(self, least: int, most: int) -> None:
        """Count launched work that will emit `least` to `most` tokens; call `land` when its result is taken."""
        self.flying_least += least
        self.flying_most += most

    def land(self, least: int, most: int) -> None:
        """The result of work counted by `take_off` is taken."""
        self.flying_least -= least
        self.flying_most -= most

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer together if the answer uses all of max_tokens."""
        return len(self.prompt_ids) + self.params.max_tokens

    def restart(self) -> None:
        """Forget the KV (the pages are gone already); prompt and answer so far are prefilled again."""
        self.prefilled = self.prefix_tokens = self.shared_pages = 0
        self.draft = DraftProgress()
        self.tape = None  # recomputed states can't be distinguished from those it holds
        self.prefill_length = self.length
        self.preemptions += 1

    def emit(
        self,
        token_ids: Sequence[int],
        origins: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None = None,
        sources: Sequence[str] = (),
    ) -> Emitted:
        """Take tokens up to the first stop or max_tokens; nothing after it is kept.

        `sources`: who proposed each; tokens beyond them are the target's own.
        """
        room = self.params.max_tokens - len(self.output_ids)
        taken = list(token_ids[:room])
        for index, token in enumerate(taken):
            if self._stops_at(token):
                taken = taken[: index + 1]
                if self._breaks_off(taken):
                    self.finish_reason = "error"
                break
        else:
            if len(taken) == room:
                self.finish_reason = "length"
        if self.finish_reason and self.watch is not None and self.watch.finish():
            self.finish_reason, self.stop_reason = "stop", self.watch.matched
        depths = list(origins[: len(taken)])
        proposed_by = [*sources[: len(taken)], *[""] * (len(taken) - len(sources))]
        reported = None
        if self.params.logprobs is not None and logprobs is not None:
            top = self.params.logprobs
            reported = [entry._replace(top=entry.top[:top]) for entry in logprobs[: len(taken)]]
            self.logprobs += reported
        if not self.output_ids:
            self.first_token_at = time.perf_counter()
        self.output_ids += taken
        self.origins += depths
        self.sources += proposed_by
        self.last_token_at = time.perf_counter()
        text = None if self.watch is None else self.watch.take()
        return Emitted(taken, depths, proposed_by, reported, text)

    def _stops_at(self, token: int) -> bool:
        """True if this token ends the answer. A stop token's own text is no part of the answer."""
        if token in self.stop_ids:
            self.finish_reason = "stop"
            self.stop_reason = token if token in self.params.stop_token_ids else None
        elif self.watch is not None and self.watch.add(token):
            self.finish_reason, self.stop_reason = "stop", self.watch.matched
        return self.finish_reason is not None

    def _breaks_off(self, taken: Sequence[int]) -> bool:
        """True if the answer, with these last tokens, ends by itself before it has the form it has to have."""
        if self.grammar is None or self.finish_reason != "stop" or self.stop_reason is not None:
            return False
        return not self.grammar.completed_by([*self.output_ids, *taken[:-1]])

    @property
    def text_ids(self) -> list[int]:
        """The answer's tokens without the stop token."""
        stopped = self.finish_reason == "stop" and not isinstance(self.stop_reason, str)
        stopped = stopped or self.finish_reason == "error"
        return self.output_ids[:-1] if stopped else self.output_ids

    def count_round(self, taken: Sequence[int], drafted: bool) -> None:
        """Record a round that emitted tokens of these origins (see `emit`)."""
        self.rounds += 1
        self.round_tokens += len(taken)
        if not drafted:
            return
        self.drafted_rounds += 1
        depth = max(taken, default=0)
        if depth > len(self.accepted_by_depth):
            self.accepted_by_depth += [0] * (depth - len(self.accepted_by_depth))
        for index in range(depth):
            self.accepted_by_depth[index] += 1

    def complete(self, text: str, phases: PhaseSeconds) -> Completion:
        """The finished answer; `phases` is the engine's reading now."""
        tokens = len(self.output_ids)
        decode_ms = (self.last_token_at - self.first_token_at) * 1e3
        stats = CompletionStats(
            tokens=tokens,
            rounds=self.rounds,
            tau=self.round_tokens / self.rounds if self.rounds else 1.0,
            ttft_ms=(self.first_token_at - self.submitted) * 1e3,
            tpot_ms=decode_ms / (tokens - 1) if tokens > 1 else 0.0,
            e2e_ms=(self.last_token_at - self.submitted) * 1e3,
            accepted_by_depth=list(self.accepted_by_depth),
            drafted_rounds=self.drafted_rounds,
            token_origins=list(self.origins),
            phases=phases.since(self.phases_at_start or phases),
            preemptions=self.preemptions,
            cached_tokens=self.cached_tokens,
            token_sources=list(self.sources),
        )
        return Completion(
            text=text,
            token_ids=list(self.output_ids),
            prompt_token_ids=list(self.prompt_ids),
            finish_reason=self.finish_reason or "length",
            stats=stats,
            stop_reason=self.stop_reason,
            logprobs=None if self.params.logprobs is None else list(self.logprobs),
            prompt_logprobs=None
            if self.params.prompt_logprobs is None
            else list(self.prompt_logprobs.values()),
        )


def traces_of(
    requests: Sequence[Request],
    tree: DraftTree,
    path: Tensor,
    rows: Sequence[Sequence[int]],
    names: Sequence[str],
) -> dict[int, TreeTrace]:
    """By request id, the draft trees of those that were submitted with `trace`; a row begins with how many it emits.

    `names`: of all that propose.
    """
    traces: dict[int, TreeTrace] = {}
    for row, request in enumerate(requests):
        if request.trace and request.speculate:
            # Its neighbours may have more nodes: the last ones are empty then.
            nodes = int((tree.token_ids[row] >= 0).sum())
            columns = (tree.token_ids[row], tree.parents[row], tree.log_probs[row])
            ids, parents, scores = (column[:nodes].tolist() for column in columns)
            sources = ["", *(names[source] for source in tree.sources[row, 1:nodes].tolist())]
            accepted = path[row, : rows[row][0]].tolist()
            traces[request.id] = TreeTrace(ids, parents, scores, accepted, sources)
    return traces


def sources_of(result: RoundResult, rows: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[str]]:
    """Per request, who proposed each accepted token; a row begins with how many it emits, `names` are by `Source`."""
    if result.drafted.proposal is None:
        return [list(names[:1]) * (row[0] - 1) for row in rows]
    sources = result.drafted.sources.gather(1, result.path).tolist()
    return [[names[one] for one in own[1 : row[0]]] for own, row in zip(sources, rows, strict=True)]
