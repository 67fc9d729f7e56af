"""Training the draft head, and measuring it on stored features."""

from fledge.train.acceptance import Acceptance
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
    "train",
    "train_fingerprint",
]
