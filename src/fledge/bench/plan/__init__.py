"""`fledge plan`: a model's bytes, and a roofline of its speed, from its shape and a device's data sheet.

shape.py    weights and KV bytes from config.json        predict.py   seconds of a forward and of a round; the tables
"""

from fledge.bench.plan.predict import PlanOptions, make_plan
from fledge.bench.plan.shape import read_shape

__all__ = ["PlanOptions", "make_plan", "read_shape"]
