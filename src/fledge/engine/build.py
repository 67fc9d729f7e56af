"""From a target, a head and the user's limits to everything an engine holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from fledge.base.errors import EngineError
from fledge.draft.cpu import NativeHeadRunner
from fledge.draft.runner import HeadRunner
from fledge.engine.batch import BatchSizes, RunningBatch
from fledge.engine.drafters.drafter import Drafter
from fledge.engine.drafters.eagle import Eagle, HeadSizes
from fledge.engine.drafters.proposer import Proposers, source_names
from fledge.engine.flight import Flight, make_flight
from fledge.engine.forwards import TargetForward
from fledge.engine.measure import measure_cost
from fledge.engine.memory import activation_bytes, free_memory, graph_bytes, memory_for_kv
from fledge.engine.options import EngineOptions
from fledge.engine.phases import PhaseClock
from fledge.engine.planner import AdaptivePlanner, FixedPlanner, Planner, RoundPlan
from fledge.engine.pool import PagePool
from fledge.engine.prefix import PrefixCache
from fledge.engine.record import Recorder
from fledge.engine.rounds.graphs import TREES, CudaRecorder, GraphRound, RoundKey, keys, trees_for
from fledge.engine.rounds.native import NativeRound
from fledge.engine.rounds.padding import PaddedBatch, SettledState
from fledge.engine.rounds.rounds import Round, Rounds
from fledge.engine.rounds.torch import TorchRound
from fledge.engine.rounds.verifier import Verifier
from fledge.engine.scheduler import Scheduler
from fledge.engine.selection import SelectionRows
from fledge.engine.shapes import PLAIN, TOPKS, TreeShape, deepest
from fledge.target.batch import Decoder
from fledge.target.cpu import NativeDecoder
from fledge.target.experts import waits
from fledge.target.target import Target

LOOKUP = 15  # tokens prompt lookup proposes at most, where nothing else is said
_PENDING_PAGES = 8  # of the latest positions, kept for a head that falls behind while plain rounds run


@dataclass(frozen=True)
class EngineParts:
    """All parts of an engine."""

    rounds: Rounds
    target: TargetForward
    drafter: Drafter | None
    proposers: Proposers | None
    sources: Sequence[str]  # names of all that propose, by `Source`
    pool: PagePool
    batch: RunningBatch
    scheduler: Scheduler
    planner: Planner
    flight: Flight
    clock: PhaseClock
    overlap: bool
    own_kernels: bool  # they have threads of their own, so torch is kept in one thread (`torch_alone`)
    max_context: int
    kv_bytes: int  # the most that the KV of target and head may take
    recorder: Recorder | None


def refuse_unfit(target: Target, options: EngineOptions) -> None:
    """Raise an EngineError for what the target or its device can't do: before its weights are read."""
    limit = target.config.max_position_embeddings
    if options.max_context is not None and options.max_context > limit:
        raise EngineError(
            f"max_context is {options.max_context}, but this target's positions allow 2 to {limit}; choose one of those"
        )
    if options.overlap:
        refuse_overlap(target.device)
    if options.cuda_graphs:
        CudaRecorder(target.device)
    if options.recorder is not None and target.device.type != "cpu":
        raise EngineError("learning while serving needs a target on a CPU as yet; leave it out")


def refuse_overlap(device: torch.device) -> None:
    """Raise an EngineError unless the device is a GPU."""
    if device.type != "cuda":
        raise EngineError(
            "overlap needs a GPU: on a CPU the host and the kernels share the cores; leave overlap out"
        )


def build_parts(decoder: Decoder, head: HeadRunner | None, options: EngineOptions) -> EngineParts:
    """Build all parts of an engine. Raises an EngineError if its limits leave no room for a request."""
    own = options.own_drafter
    if options.tree == PLAIN:
        head = own = None
    speculates = head is not None or own is not None
    tree, lookup = _with_lookup(head, options)
    vocabulary = head.config.draft_vocab_size if head else own.vocabulary if own else None
    bounds = _bounds(vocabulary or decoder.config.vocab_size, tree, lookup) if speculates else [PLAIN]
    adaptive = speculates and tree is None
    overlap = decoder.device.type == "cuda" if options.overlap is None else options.overlap
    window = max(shape.window for shape in bounds)
    # The host composes a round while the one before it may still commit this many tokens.
    ahead = max(shape.reach for shape in bounds) + 1 if overlap else 0
    reserve = window + ahead
    nodes = max(shape.nodes for shape in bounds)
    recorded = _recorded(decoder, own, options, bounds, lookup)
    pool, context = _size_pool(decoder, head, options, reserve, nodes, recorded)
    last_position = decoder.config.max_position_embeddings - 1
    target = TargetForward(
        decoder, decoder.allocate_kv(pool.pages), pool.pages, last_position,
        sampler=getattr(decoder, "sample", None), drawn=getattr(decoder, "forward_drawn", None),
    )  # fmt: skip
    pages = pool.pages_for(context + reserve)
    topk = max(shape.topk for shape in bounds) if speculates else 0
    selection = SelectionRows(options.max_batch, decoder.config.vocab_size, decoder.device)
    eagle = proposers = None
    if head is not None:
        head_sizes = HeadSizes(
            rows=options.max_batch,
            pages=pages,
            pool=pool.pages,
            topk=topk,
            features=3 * decoder.config.hidden_size,
            pending=_PENDING_PAGES * decoder.page_size if adaptive else 0,
            last_position=last_position,
        )
        if options.proposers:
            proposers = Proposers(options.proposers, decoder.config.vocab_size, options.max_batch)
        eagle = Eagle(head, head_sizes, selection, decoder.dtype, decoder.device, proposers)
    drafter = eagle or own
    history = context + reserve + 1 if lookup or own else 0
    states: list[SettledState] = [one for one in (selection, drafter, proposers) if one is not None]
    # Recorded rounds look at histories as long as they can become.
    sizes = BatchSizes(options.max_batch, pages, history, 0 if recorded else decoder.page_size)
    verifier, clock = Verifier(target, selection), PhaseClock()
    batch: RunningBatch
    backend: Round
    graphs: GraphRound | None = None
    if recorded:
        batch = padded = PaddedBatch(sizes, decoder.device, states)
        backend = graphs = GraphRound(verifier, padded, drafter, clock, CudaRecorder(decoder.device))
    else:
        batch = RunningBatch(sizes, decoder.device, states)
        if _kernels(decoder, eagle, own):
            backend = NativeRound(verifier, batch, eagle, clock)
        else:
            backend = TorchRound(verifier, batch, drafter, clock)
    verifier.records = options.recorder is not None
    planner: Planner = FixedPlanner(tree or PLAIN)
    if adaptive:
        with torch.inference_mode():
            cost = measure_cost(target, eagle, options.max_batch, graphs.recorder if graphs else None)
        confident, few = isinstance(backend, NativeRound), trees_for if recorded else None
        planner = AdaptivePlanner(cost, topk, confident, lookup, few=few)
    if graphs is not None:
        with torch.inference_mode():
            room = _activations(decoder, options, nodes)
            graphs.record(recorded, partial(RoundPlan, match_rates=planner.match_rates), room)
    return EngineParts(
        rounds=Rounds(backend, batch, drafter, clock),
        target=target,
        drafter=drafter,
        proposers=proposers,
        sources=source_names(drafter, options.proposers) if drafter is not None else (),
        pool=pool,
        batch=batch,
        scheduler=Scheduler(
            pool,
            batch,
            options,
            window=window,
            ahead=ahead,
            prefix=PrefixCache(pool, heads=head is not None) if options.prefix_cache else None,
            rereads=planner.rereads,
            forget=partial(_forget, _read_by_page(target, eagle)),
        ),
        planner=planner,
        flight=make_flight(decoder.device, int(overlap)),
        clock=clock,
        overlap=overlap,
        own_kernels=decoder.backend == "native",
        max_context=context,
        kv_bytes=target.kv.nbytes + (0 if eagle is None else eagle.kv.nbytes),
        recorder=options.recorder,
    )


def _recorded(
    decoder: Decoder, own: Drafter | None, options: EngineOptions, bounds: Sequence[TreeShape], lookup: int
) -> list[RoundKey]:
    """The rounds that are CUDA graphs. `bounds`: the largest trees; `lookup`: tokens added to those of the planner."""
    wanted = options.cuda_graphs
    if wanted is None:
        experts, gpu = decoder.config.experts, decoder.device.type == "cuda"
        reads = (
            bool(options.proposers)
            or (own is not None and not own.recordable)
            or (experts is not None and waits(experts, decoder.config.hidden_size, decoder.dtype))
        )
        wanted = gpu and find_spec("triton") is not None and not reads
    if not wanted:
        return []
    if bounds == [PLAIN] or options.tree is not None:
        return keys(options.max_batch, [shape for shape in bounds if shape != PLAIN])
    topk = max(shape.topk for shape in bounds)
    trees = [replace(shape, lookup=lookup) for shape in TREES if shape.topk <= topk]
    return keys(options.max_batch, trees)


def _activations(decoder: Decoder, options: EngineOptions, nodes: int) -> int:
    """Bytes of the largest forward; `nodes`: of a draft tree, at most."""
    rows = options.max_batch * nodes
    return activation_bytes(decoder.config, max(rows, options.prefill_rows), rows, decoder.dtype.itemsize)


def _kernels(decoder: Decoder, eagle: Eagle | None, own: Drafter | None) -> bool:
    """True if a round can be one C++ call."""
    native_head = eagle is None or isinstance(eagle.runner, NativeHeadRunner)
    return isinstance(decoder, NativeDecoder) and native_head and own is None


def _read_by_page(target: TargetForward, eagle: Eagle | None) -> list[Tensor]:
    """The KV pools whose attention reads whole pages: those of the CPU kernels, [layers, pages, heads, 2, ...]."""
    pools = [target.kv] if isinstance(target.decoder, NativeDecoder) else []
    if eagle is not None and isinstance(eagle.runner, NativeHeadRunner):
        pools.append(eagle.kv)
    return pools


def _forget(pools: Sequence[Tensor], pages: Sequence[int]) -> None:
    """Clear the values on these pages, before they get another owner.

    Attention gives a page's entries that aren't the request's the weight 0. That zeroes any finite value but not a NaN,
    which would pass from one request to all that ever get its pages.
    """
    for pool in pools:
        pool[:, list(pages), :, 1] = 0


def _size_pool(
    decoder: Decoder,
    head: HeadRunner | None,
    options: EngineOptions,
    reserve: int,
    nodes: int,
    recorded: Sequence[RoundKey],
) -> tuple[PagePool, int]:
    """The pool, and how many tokens of context a request may have; `reserve` more are kept for its next rounds.

    `nodes`: of a draft tree, at most. `recorded`: rounds that are CUDA graphs.
    """
    limit = decoder.config.max_position_embeddings
    context = limit if options.max_context is None else options.max_context
    size = decoder.page_size
    token_bytes = decoder.kv_bytes_per_token() + (head.kv_bytes_per_token() if head else 0)
    tokens = options.kv_tokens
    if tokens is None:
        wanted = options.max_batch * (-(-(context + reserve) // size) * size)
        needed = _activations(decoder, options, nodes)
        rows = max((key.requests * key.shape.nodes for key in recorded), default=0)
        needed += graph_bytes(decoder.config, rows, len(recorded), decoder.dtype.itemsize)
        tokens = min(wanted, memory_for_kv(decoder.device, needed) // token_bytes)
    free = free_memory(decoder.device)
    if tokens * token_bytes > free:
        raise EngineError(
            f"a KV pool of {tokens} tokens takes {tokens * token_bytes / 2**30:.1f} GiB, and {free / 2**30:.1f} are "
            "free; lower kv_tokens"
        )
    pool = PagePool(tokens // size + 1, size)  # page 0 is unowned
    if options.max_context is None:
        context = min(context, pool.usable_tokens - reserve)
    if context < 2 or pool.usable_tokens < context + reserve:
        raise EngineError(
            f"a KV pool of {pool.usable_tokens} tokens can't hold a request of {max(context, 2)} tokens and its window "
            f"of {reserve}; raise kv_tokens or lower max_context"
        )
    return pool, context


def _with_lookup(head: HeadRunner | None, options: EngineOptions) -> tuple[TreeShape | None, int]:
    """The tree and how many tokens prompt lookup may propose: a fixed tree's own number unless another is given."""
    tree, lookup = options.tree, options.lookup
    if head is None:
        return tree, 0
    if lookup is None and options.proposers:
        lookup = LOOKUP if tree is None else tree.lookup or LOOKUP
    if tree is None:
        return None, LOOKUP if lookup is None else lookup
    if lookup is not None:
        tree = replace(tree, lookup=lookup)
    return tree, tree.lookup


def _bounds(vocabulary: int, tree: TreeShape | None, lookup: int) -> list[TreeShape]:
    """The largest trees that will be grown, of a drafter that proposes so many tokens."""
    if tree is None:
        return [deepest(topk, lookup) for topk in TOPKS if topk <= vocabulary]
    if tree.topk > vocabulary:
        raise EngineError(f"{tree} wants more children than the head's {vocabulary} tokens; lower topk")
    return [tree]
