"""Training the draft head, and measuring it on stored features. Read trainer.py first: it holds the loop.

before      start.py the head that training starts from       budget.py the steps that fit into train.minutes
            refusals.py checks that fail early
batches     batches.py conversations to batches               feed.py prefetch
a step      learner.py, then unroll.py (TTT) and loss.py      optimizer.py the update
the layer   functions.py autograd functions                   attention.py, attention_flex.py, blocks.py
kernels     kernels.py, attention_torch.py in torch           kernels_compiled.py, attention_compiled.py, library.py
weights     weights.py flat buffers, workspace.py scratch     parallel.py several processes, sharded.py
saved       checkpoint.py                                     curves.py TensorBoard and W&B
measuring   evaluation.py, acceptance.py, serving.py          compare.py two heads
"""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.train.acceptance import Acceptance as Acceptance
    from fledge.train.evaluation import evaluate as evaluate
    from fledge.train.options import EvaluateOptions as EvaluateOptions
    from fledge.train.options import TrainOptions as TrainOptions
    from fledge.train.refusals import refuse_one_sided as refuse_one_sided
    from fledge.train.refusals import refuse_untrainable as refuse_untrainable
    from fledge.train.trainer import train as train
    from fledge.train.trainer import train_fingerprint as train_fingerprint
else:
    __getattr__ = on_first_use(__name__)
