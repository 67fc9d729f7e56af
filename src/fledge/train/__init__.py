"""Training the draft head, and measuring it on stored features."""

from fledge.train.acceptance import Acceptance
from fledge.train.curves import refuse_without_wandb
from fledge.train.evaluate import Evaluation, evaluate
from fledge.train.options import EvaluateOptions, TrainOptions
from fledge.train.trainer import TrainSummary, train, train_fingerprint

__all__ = [
    "Acceptance",
    "EvaluateOptions",
    "Evaluation",
    "TrainOptions",
    "TrainSummary",
    "evaluate",
    "refuse_without_wandb",
    "train",
    "train_fingerprint",
]
