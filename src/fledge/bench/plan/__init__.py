"""Predicts speed, bytes and hours from a model's shape and a device's data sheet, before renting anything.

shape.py     weights and KV bytes from config.json        forward.py   seconds of a forward and of a round
predict.py   the tables of `fledge plan`              check.py     against a benchmark of this machine
"""

from fledge.bench.plan.check import check_table
from fledge.bench.plan.predict import PlanOptions, make_plan
from fledge.bench.plan.shape import read_shape

__all__ = [
    "PlanOptions",
    "check_table",
    "make_plan",
    "read_shape",
]
