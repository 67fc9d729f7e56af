"""The target's own words are scanned too: a model may have learnt somebody's number by heart.

Ids can't be redacted without training on ids the target never produced, so a conversation ends before an answer with a
finding. Invented values that the prompt holds may be repeated: the recognisers pass over them.
"""

from __future__ import annotations

from collections import Counter

from fledge.data.privacy.filter import PrivacyFilter, Treated, require_privacy_extra
from fledge.data.privacy.options import PrivacyOptions


class AnswerFilter:
    """Looks at the target's texts, one at a time."""

    def __init__(self, options: PrivacyOptions) -> None:
        wanted = tuple(sorted(options.answer_wanted))
        self._filter = PrivacyFilter(options=options.model_copy(update={"entities": wanted}))

    def __call__(self, text: str) -> Treated:
        """The text as it is, or nothing, with counts of what was found."""
        counts = Counter(finding.entity for finding in self._filter.scan(text))
        return Treated(None, dict(counts), "answer") if counts else Treated([text])


def answer_scan(options: PrivacyOptions | None) -> AnswerFilter | None:
    """The filter of answers, if the options ask for one."""
    if options is None or not options.answers:
        return None
    require_privacy_extra()
    return AnswerFilter(options)
