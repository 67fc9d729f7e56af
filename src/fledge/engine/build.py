"""From a target, a head and the user's limits to everything an engine holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fledge.base.errors import EngineError
from fledge.draft.runner import HeadRunner
from fledge.engine import native_tree
from fledge.engine.carried import CarriedSizes, RunningBatch
from fledge.engine.forwards import Models
from fledge.engine.graphs import CudaRecorder, RecordedRounds
from fledge.engine.lane import Lane, make_lane
from fledge.engine.layout import Layouts
from fledge.engine.measure import measure_cost
from fledge.engine.memory import free_memory, memory_for_kv
from fledge.engine.native_plain import native_plain
from fledge.engine.native_round import native_round
from fledge.engine.options import EngineOptions
from fledge.engine.planner import AdaptivePlanner, FixedPlanner, Planner
from fledge.engine.pool import PagePool
from fledge.engine.prefix import PrefixCache
from fledge.engine.scheduler import Scheduler
from fledge.engine.shapes import MAX_DEPTH, MAX_NODES, PLAIN, TOPKS, TreeShape, deepest
from fledge.target.batch import Decoder
from fledge.target.target import Target

LOOKUP = 15  # tokens prompt lookup proposes at most, where nothing else is said
_PENDING_PAGES = 8  # of the latest positions, kept for a head that falls behind while plain rounds run


@dataclass(frozen=True)
class EngineParts:
    """All that an engine holds."""

    models: Models
    pool: PagePool
    batch: RunningBatch
    scheduler: Scheduler
    planner: Planner
    lane: Lane
    overlap: bool
    own_kernels: bool  # they have threads of their own, so torch is kept in one thread (`torch_alone`)
    max_context: int


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


def refuse_overlap(device: torch.device) -> None:
    """Raise an EngineError unless the device is a GPU."""
    if device.type != "cuda":
        raise EngineError(
            "overlap needs a GPU: on a CPU the host and the kernels share the cores; leave overlap out"
        )


def build_parts(decoder: Decoder, head: HeadRunner | None, options: EngineOptions) -> EngineParts:
    """All that an engine holds. Raises an EngineError if its limits leave no room for a request."""
    head = None if options.tree == PLAIN else head
    tree, lookup = _with_lookup(head, options)
    bounds = _bounds(head, tree, lookup)
    adaptive = head is not None and tree is None
    if options.tuned is not None:
        _check_tuned(options.tuned, bounds)
    overlap = decoder.device.type == "cuda" if options.overlap is None else options.overlap
    window = max(shape.window for shape in bounds)
    # The host composes a round while the one before it may still commit this many tokens.
    ahead = max(shape.reach for shape in bounds) + 1 if overlap else 0
    reserve = window + ahead
    pool, context = _size_pool(decoder, head, options, reserve)
    topk = max(shape.topk for shape in bounds) if head else 0
    models = _allocate(decoder, head, pool.pages, topk, cuda_graphs=options.cuda_graphs)
    sizes = CarriedSizes(
        rows=options.max_batch,
        pages=pool.pages_for(context + reserve),
        topk=topk,
        hidden=head.config.hidden_size if head else 0,
        features=3 * decoder.config.hidden_size if head else 0,
        vocabulary=decoder.config.vocab_size,
        dtype=decoder.dtype,
        pending=_PENDING_PAGES * decoder.page_size if adaptive else 0,
        history=context + reserve + 1 if lookup else 0,
    )
    batch, lane = RunningBatch(sizes, decoder.page_size, decoder.device), make_lane(decoder.device)
    batch.selection.settles = options.cuda_graphs
    planner: Planner = FixedPlanner(tree or PLAIN)
    if adaptive:
        with torch.inference_mode():
            cost = measure_cost(models, options.max_batch)
        confident = native_tree.reads_are_free(models.kv)
        planner = AdaptivePlanner(cost, topk, confident, lookup, start=options.tuned or {})
    return EngineParts(
        models=models,
        pool=pool,
        batch=batch,
        scheduler=Scheduler(
            pool,
            batch,
            lane,
            max_batch=options.max_batch,
            window=window,
            ahead=ahead,
            prefill_rows=options.prefill_rows,
            busy_prefill_rows=min(options.busy_prefill_rows, options.prefill_rows),
            prefix=PrefixCache(pool, heads=head is not None) if options.prefix_cache else None,
            rereads=planner.rereads,
            forget=None if models.native_plain is None else models.native_plain.forget,
        ),
        planner=planner,
        lane=lane,
        overlap=overlap,
        own_kernels=decoder.backend == "native",
        max_context=context,
    )


def _size_pool(
    decoder: Decoder, head: HeadRunner | None, options: EngineOptions, reserve: int
) -> tuple[PagePool, int]:
    """The pool, and how many tokens of context a request may have; `reserve` more are kept for its next rounds."""
    limit = decoder.config.max_position_embeddings
    context = limit if options.max_context is None else options.max_context
    size = decoder.page_size
    token_bytes = decoder.kv_bytes_per_token() + (head.kv_bytes_per_token() if head else 0)
    tokens = options.kv_tokens
    if tokens is None:
        wanted = options.max_batch * (-(-(context + reserve) // size) * size)
        tokens = min(wanted, memory_for_kv(decoder.device) // token_bytes)
    free = free_memory(decoder.device)
    if tokens * token_bytes > free:
        raise EngineError(
            f"a KV pool of {tokens} tokens takes {tokens * token_bytes / 2**30:.1f} GiB, and {free / 2**30:.1f} are "
            "free; lower kv_tokens"
        )
    pool = PagePool(tokens // size + 1, size)  # page 0 is nobody's
    if options.max_context is None:
        context = min(context, pool.usable_tokens - reserve)
    if context < 2 or pool.usable_tokens < context + reserve:
        raise EngineError(
            f"a KV pool of {pool.usable_tokens} tokens can't hold a request of {max(context, 2)} tokens and its window "
            f"of {reserve}; raise kv_tokens or lower max_context"
        )
    return pool, context


def _allocate(
    decoder: Decoder, head: HeadRunner | None, pages: int, topk: int, *, cuda_graphs: bool
) -> Models:
    """Both models, with KV for so many pages."""
    kv, head_kv = decoder.allocate_kv(pages), head.allocate_kv(pages) if head else None
    last_position = decoder.config.max_position_embeddings - 1
    native = native_round(decoder, kv, head, head_kv, last_position)
    return Models(
        decoder=decoder,
        kv=kv,
        head=head,
        head_kv=head_kv,
        pages=pages,
        sampler=getattr(decoder, "sample", None),
        drawn=getattr(decoder, "forward_drawn", None),
        layouts=Layouts(decoder.device),
        last_position=last_position,
        topk=topk,
        native=native,
        native_plain=native or native_plain(decoder, kv, last_position),
        rounds=RecordedRounds(CudaRecorder(decoder.device)) if cuda_graphs else None,
    )


def _with_lookup(head: HeadRunner | None, options: EngineOptions) -> tuple[TreeShape | None, int]:
    """The tree and how many tokens prompt lookup may propose: a fixed tree's own number unless another is given."""
    tree, lookup = options.tree, options.lookup
    if head is None:
        return tree, 0
    if tree is None:
        return None, LOOKUP if lookup is None else lookup
    if lookup is not None:
        tree = replace(tree, lookup=lookup)
    return tree, tree.lookup


def _bounds(head: HeadRunner | None, tree: TreeShape | None, lookup: int) -> list[TreeShape]:
    """The largest trees that will be grown."""
    if head is None:
        return [PLAIN]
    vocabulary = head.config.draft_vocab_size
    if tree is None:
        return [deepest(topk, lookup) for topk in TOPKS if topk <= vocabulary]
    if tree.topk > vocabulary:
        raise EngineError(f"{tree} wants more children than the head's {vocabulary} tokens; lower topk")
    return [tree]


def _check_tuned(tuned: Mapping[int, TreeShape], bounds: Sequence[TreeShape]) -> None:
    """Raise an EngineError for shapes to begin with that no planner of this engine could use."""
    widest = max(shape.topk for shape in bounds)
    for requests, shape in tuned.items():
        if requests < 1 or (
            shape != PLAIN
            and not (shape.topk <= widest and 1 <= shape.depth <= MAX_DEPTH and 2 <= shape.nodes <= MAX_NODES)
        ):
            raise EngineError(
                f"tuned has {shape} for {requests} requests; the planner's trees have at most {widest} children, "
                f"{MAX_DEPTH} levels and {MAX_NODES} nodes: run fledge tune again"
            )
