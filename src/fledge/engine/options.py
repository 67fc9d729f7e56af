"""Engine options. Everything that can be validated before the target is loaded is validated here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fledge.base.errors import EngineError
from fledge.base.options import DraftWeights, Flag, Options, Switch, Whole
from fledge.engine.shapes import MAX_NODES, PLAIN, TreeShape, shape_from

# Options that other rooms offer, too, such as a recipe's bench part.
LookupTokens = Annotated[
    Whole | None,
    Field(
        ge=0,
        lt=MAX_NODES,
        description="tokens prompt lookup may add to a draft tree, from repetitions in the request's own tokens; "
        "0: none; left out, 15, or the number of a fixed `tree`",
    ),
]
DraftWeightsOption = Annotated[
    DraftWeights | None,
    Field(
        description="type of the head's matrices; left out, int8 on the CPU kernels, else the target's type"
    ),
]
Overlap = Annotated[
    Switch | None,
    Field(
        description="handle a round's results on the host while the next round runs; on GPUs only, and there by default"
    ),
]
CudaGraphs = Annotated[
    Switch | None,
    Field(
        description="record rounds at start and replay them; on GPUs with Triton only, and there by default unless a "
        "drafter of your own or a mixture of experts reads values on the host"
    ),
]


def _shape(value: object) -> object:
    return shape_from(value) if isinstance(value, str) else value


def _drafter(value: object) -> object:
    """An instance of a drafter that is given as `module:Class`; any other value must be a drafter already."""
    from fledge.base.plugs import made
    from fledge.engine.drafters.drafter import Drafter
    from fledge.engine.drafters.proposer import Proposer

    if isinstance(value, str):
        value = made(value)
    if value is None or isinstance(value, Drafter | Proposer):
        return value
    raise ValueError("name a class that derives from fledge.engine.Drafter or fledge.engine.Proposer")


def _proposals(value: object) -> object:
    """Instances of proposers; each is given as one, or as `module:Class`."""
    from fledge.engine.drafters.proposer import Proposer

    if not isinstance(value, list | tuple):
        raise ValueError("give a list of proposers")
    found = tuple(map(_drafter, value))
    if not all(isinstance(one, Proposer) for one in found):
        raise ValueError("derive each from fledge.engine.Proposer")
    return found


class EngineOptions(Options):
    """Options of an engine."""

    error = EngineError

    max_batch: Annotated[Whole, Flag(first=True)] = Field(16, ge=1, description="requests decoded at once")
    max_context: Annotated[Whole | None, Flag(first=True)] = Field(
        None,
        ge=2,
        description="maximum number of tokens of a prompt and its answer together; left out, what target and memory "
        "allow",
    )
    kv_tokens: Annotated[Whole | None, Flag(first=True)] = Field(
        None,
        ge=1,
        description="tokens that the KV pool holds, which grows by use on a CPU; left out, a quarter of the free "
        "memory at most, on a GPU nine tenths of what weights and activations leave",
    )
    drafter: Annotated[Any, BeforeValidator(_drafter), Flag(metavar="MODULE:CLASS")] = Field(
        None,
        description="a drafter of your own in place of a head, fledge.engine:Lookup for prompt lookup alone, or a "
        "proposer of your own beside the head; with arguments as in module:Class(file=words.txt)",
    )
    proposals: Annotated[Any, BeforeValidator(_proposals), Flag(hidden=True)] = Field(
        (), description="proposers of your own beside the head, fledge.engine.Proposer"
    )
    tree: Annotated[TreeShape | None, BeforeValidator(_shape), Flag(metavar="DEPTH-TOPK-NODES")] = Field(
        None,
        description="the draft tree of every round, such as 4-4-16; left out, a planner chooses from measured costs "
        'and acceptance, "no speculation" included',
    )
    lookup: LookupTokens = None
    prefill_rows: Whole = Field(1024, ge=1, description="maximum number of prompt tokens in one forward")
    busy_prefill_rows: Whole = Field(
        256, ge=1, description="the same while other requests decode, since they wait for that forward"
    )
    fair_prefill: Switch = Field(
        True, description="short prompts don't wait for long ones; otherwise prompts run in order of arrival"
    )
    prefix_cache: Switch = Field(
        True,
        description="requests reuse the KV that earlier ones with the same first tokens left in the pool",
    )
    draft_weights: DraftWeightsOption = None
    overlap: Overlap = None
    cuda_graphs: CudaGraphs = None
    recorder: Annotated[Any, Flag(hidden=True)] = Field(
        None,
        description="gets the hidden states of requests submitted with `record`, to learn from "
        "(fledge.learn); on a CPU",
    )

    @property
    def own_drafter(self) -> Any:
        """A drafter in place of a head, if any."""
        return None if self.drafter in self.proposers else self.drafter

    @property
    def proposers(self) -> tuple[Any, ...]:
        """All that propose beside a head."""
        from fledge.engine.drafters.proposer import Proposer

        return (*self.proposals, *([self.drafter] if isinstance(self.drafter, Proposer) else ()))

    def check_head(self, *, given: bool) -> None:
        """Raise an EngineError for what needs a draft head, if there is none to be."""
        if self.proposers and (not given or self.lookup == 0 or self.tree == PLAIN):
            raise EngineError(
                "proposals join a head's trees, where prompt lookup's do; give a head, and lookup 1 or more, or leave "
                "them out"
            )
        if self.own_drafter is not None and given:
            raise EngineError("there are a head and a drafter; leave one of them out")
        if not given and self.draft_weights is not None:
            raise EngineError("draft_weights is for a draft head; give the engine one or leave it out")
        if self.lookup and not given and self.own_drafter is not None:
            raise EngineError(
                f"lookup={self.lookup} is merged into a head's trees; leave it out, or give a head"
            )
        given = given or self.own_drafter is not None
        if not given and self.tree not in (None, PLAIN):
            raise EngineError(f"{self.tree} needs a draft head; give the engine one or leave tree out")
        if self.lookup and (not given or self.tree == PLAIN):
            raise EngineError(
                f"lookup={self.lookup} needs a draft head and a tree; give the engine both or leave it out"
            )
