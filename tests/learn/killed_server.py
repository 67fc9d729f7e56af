"""A serving process to be killed: answers the same prompts again and again, and learns from them without a pause."""

import sys

from fledge.engine import Engine
from fledge.learn import Learning
from fledge.target.target import Target
from tests.learn.planted import PLANTED
from tests.learn.test_learning import PARAMS, options
from tests.learn.test_record import serve

target = Target.load(sys.argv[1], backend="native")
made = Learning(target, options(sys.argv[2], share=0.5, measure_every=2, start_tokens=300, keep=3))  # type: ignore[arg-type]
engine = Engine(target, made.head, max_batch=4, recorder=made)
made.start(engine)
assert made._process is not None
print(made._process.pid, made.version or 0, flush=True)
prompts = [[*PLANTED, 30 + number] for number in range(8)]
while True:
    serve(engine, prompts, PARAMS, group="a")
