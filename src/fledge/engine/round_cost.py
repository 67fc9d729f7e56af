"""Duration of a round relative to a plain step: one request, measured now, in an engine made for it."""

from __future__ import annotations

from collections.abc import Collection

from fledge.draft.runner import HeadRunner
from fledge.engine.build import build_parts
from fledge.engine.drafters.eagle import Eagle
from fledge.engine.measure import measure_cost
from fledge.engine.options import EngineOptions
from fledge.engine.shapes import MAX_NODES, TreeShape
from fledge.target.batch import Decoder

_CONTEXT = 512  # tokens of context in the measured engine


def rounds_over_plain(
    decoder: Decoder, head: HeadRunner, shapes: Collection[TreeShape]
) -> dict[TreeShape, float]:
    """Duration of a round with each of these trees, in plain steps."""
    largest = max(shapes, key=lambda shape: shape.nodes)
    context = min(_CONTEXT, decoder.config.max_position_embeddings)
    options = EngineOptions(max_batch=1, max_context=context, tree=largest, prefill_rows=_CONTEXT)
    parts = build_parts(decoder, head, options)
    assert isinstance(parts.drafter, Eagle)
    cost = measure_cost(parts.target, parts.drafter, -(-largest.nodes // MAX_NODES))
    plain = max(cost.plain_seconds(1), 1e-9)
    return {shape: cost.round_seconds(1, shape) / plain for shape in shapes}
