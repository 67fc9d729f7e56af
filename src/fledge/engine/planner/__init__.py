"""The amount of speculation in the next round: none, or a tree's depth, width and number of nodes.

A serving engine earns tokens and spends seconds. Let mu be the tokens per second it earns at the present batch size.
Then anything that takes t seconds has to bring more than mu * t tokens, or the time is better spent otherwise (renewal
reward). That one rule decides everything:

    another draft level     expected tokens of the next level           >  mu * seconds of a draft step and a row more
    n nodes to verify       sum of the n best nodes' probabilities      -  mu * seconds of a verify of n rows: the most
    speculation at all      tokens per second with the head             >  tokens per second without it

    planner.py      chooses each round's plan: the fastest way to decode, and now and then a try of another
    plan.py         one round's plan: the first two decisions above, taken while a tree grows
    finished.py     a finished round, as the planner sees it
    speed.py        tokens per second of plain decode, of prompt lookup alone and with the head
    cost.py         seconds of a round by its rows: measured at start, corrected by every round since
    acceptance.py   tokens to be expected: the head's probabilities, calibrated by what was accepted
"""

from fledge.engine.planner.cost import CostCurve, CostModel
from fledge.engine.planner.finished import FinishedRound
from fledge.engine.planner.plan import Kind, RoundPlan, Terms
from fledge.engine.planner.planner import AdaptivePlanner, FixedPlanner, Planner

__all__ = [
    "AdaptivePlanner",
    "CostCurve",
    "CostModel",
    "FinishedRound",
    "FixedPlanner",
    "Kind",
    "Planner",
    "RoundPlan",
    "Terms",
]
