"""The head that training starts from: a new one with its draft vocabulary, or an existing one.

With Muon and little data, a copy of the target's last layer is a worse start than random weights; see docs/train.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fledge.base.errors import DataError
from fledge.draft import DraftVocabulary, HeadConfig, HeadMetadata, HeadWeights, count_generated
from fledge.draft.description import SWITCHES, initial_vectors, weight_shapes
from fledge.draft.options import HeadOptions
from fledge.features import SampleInfo
from fledge.heads import Head
from fledge.target import Target
from fledge.train.batches import is_trainable, random_subset
from fledge.train.feed import FeatureSource
from fledge.train.options import TrainOptions

logger = logging.getLogger("fledge")

_RIDGE = 1e-3  # relative to the mean square of the target's rows

BOTH_SIDES = (
    "set respond.heldout between 0 and 1, or use more prompts, delete the run's conversations, and its features if it "
    "has any, and run again"
)


def initial_head(target: Target, source: FeatureSource, options: TrainOptions) -> tuple[Head, float]:
    """The head training starts from, and the share of generated tokens its vocabulary covers.

    Raises a DataError if there is nothing to train on.
    """
    training = drawn_conversations(source.split("train"), options, source.url)
    counts = count_generated((source.tokens(info) for info in training), target.config.vocab_size)
    if options.init_head is not None:
        base = Head.load(options.init_head).fitted_to(target)
        _warn_of_ignored_options(base, options)
        head = Head(base.config, base.weights, HeadMetadata.of(target))
        size = options.draft_vocab_size
        if size is not None and size != head.config.draft_vocab_size:
            vocabulary = DraftVocabulary.from_counts(counts, size, target.chat.turn_end_ids)
            head = with_vocabulary(head, vocabulary, target.ends.lm_head)
        covered = float(counts[head.vocabulary.token_ids].sum()) / max(1.0, float(counts.sum()))
    else:
        vocabulary = DraftVocabulary.from_counts(counts, options.new_vocab_size, target.chat.turn_end_ids)
        switches = options.switches
        if options.init == "target":
            head = Head.from_target(target, vocabulary, switches=switches)
        else:
            keeps, sizes = options.init == "lm_head", options.head
            head = random_head(target, vocabulary, keep_output=keeps, switches=switches, sizes=sizes)
        covered = vocabulary.coverage
    head = head.with_window(options.window, keeps_first=options.window_keeps_first)
    logger.info(
        "draft vocabulary: %d of %d tokens, %.2f %% of what the target generated",
        head.config.draft_vocab_size,
        target.config.vocab_size,
        100 * covered,
    )
    return head, covered


def drawn_conversations(stored: Sequence[SampleInfo], options: TrainOptions, url: str) -> list[SampleInfo]:
    """The training conversations selected by train.response_tokens.

    Raises a DataError if none of them is trainable.
    """
    drawn = random_subset(stored, options.response_tokens, options.seed)
    if not any(map(is_trainable, stored)):
        raise DataError(f"no training conversations in {url}; {BOTH_SIDES}")
    if not any(map(is_trainable, drawn)):
        raise DataError(
            f"train.response_tokens={options.response_tokens} leaves no conversation of {url} to train on; raise it"
        )
    return drawn


def random_head(
    target: Target,
    vocabulary: DraftVocabulary,
    *,
    keep_output: bool = False,
    switches: Collection[str] = (),
    sizes: HeadOptions = HeadOptions(),
    metadata: HeadMetadata | None = None,
) -> Head:
    """A head of these sizes: matrices normal with variance 1 / inputs, norms 1, with a fixed seed.

    `keep_output` copies the final norm and lm_head from the target. `metadata`: the target's, unless it is to be asked.
    """
    config = HeadConfig.for_target(target.config, len(vocabulary), switches=switches, sizes=sizes)
    generator = torch.Generator().manual_seed(0)
    source = target.ends
    known = initial_vectors(config)
    if keep_output:
        rows = source.lm_head[vocabulary.token_ids.to(source.lm_head.device)]
        known |= {"norm": source.norm.float().cpu().clone(), "lm_head": rows.float().cpu()}

    def drawn(shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape).normal_(std=1 / math.sqrt(shape[1]), generator=generator)

    shapes = weight_shapes(config).items()
    weights = known | {name: drawn(shape) for name, shape in shapes if name not in known}
    return Head(config, HeadWeights(**weights, d2t=vocabulary.d2t), metadata or HeadMetadata.of(target))


def with_vocabulary(head: Head, vocabulary: DraftVocabulary, lm_head: Tensor) -> Head:
    """The head with another draft vocabulary: tokens that it knows keep their rows, others get the target's, mapped.

    Rows are those of its lm_head and, if it has any, of the estimates of that. The map is the ridge regression from the
    target's rows, `lm_head` [V, Ht], to the head's over the tokens that it knows. The target's rows as they are would
    ruin a head, whose last hidden state isn't the target's.
    """
    theirs = lm_head.float().cpu()
    known = theirs[head.vocabulary.token_ids]
    gram = known.t() @ known
    gram.diagonal().add_(_RIDGE * float(gram.diagonal().mean()))
    numbers = head.vocabulary.draft_ids[vocabulary.token_ids]  # -1: new to it

    def rows(of: Tensor) -> Tensor:
        ours = of.float()
        mapped = theirs[vocabulary.token_ids] @ torch.linalg.solve(gram, known.t() @ ours)  # [Vd, H or r]
        return torch.where((numbers >= 0)[:, None], ours[numbers.clamp(min=0)], mapped).to(of.dtype)

    config, up = replace(head.config, draft_vocab_size=len(vocabulary)), head.weights.candidate_up
    estimates = None if up is None else rows(up)
    weights = replace(
        head.weights, lm_head=rows(head.weights.lm_head), candidate_up=estimates, d2t=vocabulary.d2t
    )
    return Head(config, weights, head.metadata, name=head.name)


def _warn_of_ignored_options(head: Head, options: TrainOptions) -> None:
    """Training continues from a head with its own shape; warn of options for a new head that differ."""
    requested = {key: getattr(options, key) for key in SWITCHES if hasattr(options, key)}
    requested = {key: value for key, value in requested.items() if key in options.model_fields_set}
    requested |= options.head.model_dump(exclude_none=True)
    for key, value in requested.items():
        actual = getattr(head.config, key)
        if value != actual:
            logger.warning("train.%s=%s has no effect: train.init_head is a head with %s", key, value, actual)
