"""The head that training starts from: a new one with its draft vocabulary, or one to go on from."""

from __future__ import annotations

import logging

from fledge.draft import DraftVocabulary, Head, HeadMetadata, count_generated
from fledge.errors import DataError
from fledge.target import Target
from fledge.train.batches import chosen, is_trainable
from fledge.train.feed import FeatureSource
from fledge.train.options import TrainOptions
from fledge.train.random_head import random_head

logger = logging.getLogger("fledge")


def initial_head(target: Target, source: FeatureSource, options: TrainOptions) -> tuple[Head, float]:
    """The head training starts from, and how much of the generated tokens its vocabulary covers.

    Raises a DataError if there is nothing to train on.
    """
    stored = source.split("train")
    training = chosen(stored, options.response_tokens, options.seed)
    if not any(map(is_trainable, stored)):
        raise DataError(f"no training conversations in {source.url}; respond to more prompts")
    if not any(map(is_trainable, training)):
        raise DataError(
            f"train.response_tokens={options.response_tokens} leaves no conversation of {source.url} to train on; "
            "raise it"
        )
    counts = count_generated((source.tokens(info) for info in training), target.config.vocab_size)
    if options.init_head is not None:
        given = Head.load(options.init_head).fitted_to(target)
        _say_what_stays(given, options)
        head = Head(given.config, given.weights, HeadMetadata.of(target))
        covered = float(counts[head.vocabulary.token_ids].sum()) / max(1.0, float(counts.sum()))
    else:
        vocabulary = DraftVocabulary.from_counts(counts, options.draft_vocab_size, target.chat.turn_end_ids)
        norms = {"fc_norm": options.fc_norm, "norm_output": options.norm_output}
        if options.init == "target":
            head = Head.from_target(target, vocabulary, **norms)
        else:
            head = random_head(target, vocabulary, keep_output=options.init == "lm_head", **norms)
        covered = vocabulary.coverage
    logger.info(
        "draft vocabulary: %d of %d tokens, %.2f %% of what the target generated",
        head.config.draft_vocab_size,
        target.config.vocab_size,
        100 * covered,
    )
    return head, covered


def _say_what_stays(head: Head, options: TrainOptions) -> None:
    """A head to go on from keeps its shape, whatever the recipe asks of a new one."""
    for key in ("draft_vocab_size", "fc_norm", "norm_output"):
        asked, found = getattr(options, key), getattr(head.config, key)
        if key in options.model_fields_set and asked != found:
            logger.warning(
                "train.%s=%s has no effect: the head that training goes on from has %s", key, asked, found
            )
