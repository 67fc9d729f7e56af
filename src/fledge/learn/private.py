"""Personal data and secrets of the traffic, which a head isn't to learn: what the privacy filter finds is masked.

The head still reads these tokens, as it does in serving, but no loss asks it to predict them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from fledge.data.privacy import PrivacyFilter
from fledge.engine.detokenize import Detokenizer, Tokenizer
from fledge.features import FeatureSample


def without_private(sample: FeatureSample, tokenizer: Tokenizer, privacy: PrivacyFilter) -> FeatureSample:
    """A conversation whose loss leaves out the tokens that hold some of what is found."""
    mask = sample.loss_mask.clone()
    for start, stop in _found(sample.token_ids.tolist(), tokenizer, privacy):
        mask[start:stop] = 0
    return replace(sample, loss_mask=mask)


def _found(token_ids: Sequence[int], tokenizer: Tokenizer, privacy: PrivacyFilter) -> list[tuple[int, int]]:
    """Ranges of tokens."""
    pieces, text = Detokenizer(tokenizer, skip_special=False), ""
    starts, ends = [], []  # of each token in the text; one that ends within a character has no text as yet
    for token in token_ids:
        starts.append(len(text))
        text += pieces.add([token])
        ends.append(len(text))
    text += pieces.add([], last=True)
    found = []
    for finding in privacy.scan(text):
        holder = min(bisect_right(ends, finding.start), len(starts) - 1)
        found.append((bisect_left(starts, starts[holder]), bisect_left(starts, finding.end)))
    return found
