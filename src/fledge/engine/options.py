"""What an engine is told at its start, checked as far as that goes without a target, whose loading may take minutes."""

from __future__ import annotations

from dataclasses import dataclass

from fledge.base.errors import EngineError
from fledge.draft.runner import DraftWeights
from fledge.engine.checks import switch, whole
from fledge.engine.drafters.drafter import Drafter
from fledge.engine.record import Recorder
from fledge.engine.shapes import MAX_NODES, PLAIN, TreeShape


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """`Engine` says what each of them means."""

    drafter: Drafter | None = None
    max_batch: int = 16
    max_context: int | None = None
    kv_tokens: int | None = None
    tree: TreeShape | None = None
    lookup: int | None = None
    prefill_rows: int = 1024
    busy_prefill_rows: int = 256
    fair_prefill: bool = True
    prefix_cache: bool = True
    draft_weights: DraftWeights | None = None
    overlap: bool | None = None
    cuda_graphs: bool | None = None
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        wholes = ("max_batch", "prefill_rows", "busy_prefill_rows", "max_context", "kv_tokens", "lookup")
        for name in wholes:
            if (number := getattr(self, name)) is not None:
                whole(name, number)
        for name in ("fair_prefill", "prefix_cache", "cuda_graphs", "overlap"):
            if (on := getattr(self, name)) is not None:
                switch(name, on)
        if self.tree is not None and not isinstance(self.tree, TreeShape):
            raise EngineError(f"tree is {self.tree!r}; use a TreeShape, or leave it out")
        if self.max_batch < 1:
            raise EngineError(f"max_batch is {self.max_batch}; an engine runs at least one request at a time")
        for name in ("prefill_rows", "busy_prefill_rows"):
            if (rows := getattr(self, name)) < 1:
                raise EngineError(
                    f"{name} is {rows}; a prefill forward needs at least one row, better hundreds"
                )
        if self.max_context is not None and self.max_context < 2:
            raise EngineError(
                f"max_context is {self.max_context}; an answer and its prompt take at least 2 tokens"
            )
        if self.kv_tokens is not None and self.kv_tokens < 1:
            raise EngineError(
                f"kv_tokens is {self.kv_tokens}; a KV pool holds at least one token, better thousands"
            )
        if self.lookup is not None and not 0 <= self.lookup < MAX_NODES:
            raise EngineError(f"lookup is {self.lookup}; let it propose 0 (none) to {MAX_NODES - 1} tokens")

    def check_head(self, *, given: bool) -> None:
        """Raise an EngineError for what needs a draft head, if there is none to be."""
        if self.drafter is not None and not isinstance(self.drafter, Drafter):
            raise EngineError(f"drafter is {self.drafter!r}; derive it from fledge.engine.Drafter")
        if self.drafter is not None and given:
            raise EngineError("there are a head and a drafter; leave one of them out")
        if not given and self.draft_weights is not None:
            raise EngineError("draft_weights is for a draft head; give the engine one or leave it out")
        if self.lookup and not given and self.drafter is not None:
            raise EngineError(
                f"lookup={self.lookup} is merged into a head's trees; leave it out, or give a head"
            )
        given = given or self.drafter is not None
        if not given and self.tree not in (None, PLAIN):
            raise EngineError(f"{self.tree} needs a draft head; give the engine one or leave tree out")
        if self.lookup and (not given or self.tree == PLAIN):
            raise EngineError(
                f"lookup={self.lookup} needs a draft head and a tree; give the engine both or leave it out"
            )
