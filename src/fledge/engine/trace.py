"""Draft trees on their way out of the engine, for requests submitted with `trace`; others cost nothing."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.engine.request import Request, TreeTrace
from fledge.engine.result import RoundResult


def tree_traces(result: RoundResult, running: Sequence[Request]) -> dict[int, TreeTrace]:
    """By request id, the trees of those that asked for them."""
    tree, path, found = result.tree, result.path, {}
    if tree is None or path is None:
        return {}
    for row, request in enumerate(running):
        if request.trace and request.speculate:
            # Its neighbours may have more nodes: the last ones are empty then.
            nodes = int((tree.token_ids[row] >= 0).sum())
            found[request.id] = TreeTrace(
                token_ids=tree.token_ids[row, :nodes].tolist(),
                parents=tree.parents.expand_as(tree.token_ids)[row, :nodes].tolist(),
                log_probs=tree.log_probs[row, :nodes].tolist(),
                path=path[row, : int(result.emitted[row, 0])].tolist(),
            )
    return found
