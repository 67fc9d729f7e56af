"""What a plan decides by its terms, in numpy: the reference of native/draft.cpp and of fledge_share_out.

The formulas are in `planner/plan.py`. A plan without terms grows its trees to their bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fledge.engine.planner import CostCurve, RoundPlan, Terms


def goes_deeper(plan: RoundPlan, level: int, open_mass: Sequence[float]) -> bool:
    """Whether level + 1 is drafted.

    `open_mass` [B]: probability that the next token is one which only that draft step could name.
    """
    terms, requests = plan.terms, len(open_mass)
    if terms is None:
        return True
    share = terms.calibration[level] * terms.next_levels[level]
    # One more node for each request that is likely enough to use it.
    fewer, more = _verify_costs(terms, np.array([requests * (level + 1), requests * (level + 2)])).tolist()
    row = (more - fewer) / requests
    return sum(max(mass * share - row, 0.0) for mass in open_mass) > terms.step


def nodes(plan: RoundPlan, scores: Tensor, depths: Tensor) -> list[int]:
    """How many nodes below its root each request gets.

    Of candidates with cumulative log probabilities `scores` [B, C], -inf where a request doesn't speculate, at depths
    [C]. Without a level of the head the probabilities are lookup's, which need no calibration.
    """
    terms, most, requests = plan.terms, plan.bound.nodes - 1, len(scores)
    if terms is None:
        return [most] * requests
    worth = scores.exp().numpy()
    if plan.drafts:
        worth = worth * np.array(terms.calibration, np.float32)[depths.numpy()]
    best = np.sort(worth, 1)[:, ::-1][:, :most]
    # Never what is worth nothing.
    order = (-best).argsort(axis=None, kind="stable")[: np.count_nonzero(best)]
    gains = np.concatenate(([0.0], best.ravel()[order].cumsum(dtype=np.float64)))
    count = (gains - _verify_costs(terms, requests + np.arange(len(gains)))).argmax()
    found: list[int] = np.bincount(order[:count] // best.shape[1], minlength=requests).tolist()
    return found


def _verify_costs(terms: Terms, rows: np.ndarray) -> np.ndarray:
    """In tokens, for ascending numbers of rows."""
    return CostCurve(terms.rows, tuple(terms.costs)).over(rows)
