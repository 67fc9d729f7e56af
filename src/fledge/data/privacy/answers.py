"""The target's own words are scanned too: a model may have learnt somebody's number by heart.

Ids can't be redacted without training on ids the target never produced, so a conversation with a finding is dropped.
Invented values that the prompt holds may be repeated: the recognisers pass over them.
"""

from __future__ import annotations

from collections import Counter

from fledge.data.conversations import Conversation
from fledge.data.privacy.audit import Audit
from fledge.data.privacy.filter import PrivacyFilter, Treated
from fledge.data.privacy.options import PrivacyOptions
from fledge.target import Target


class AnswerGuard:
    """Says of conversations whether they may be kept, and counts."""

    def __init__(self, target: Target, options: PrivacyOptions) -> None:
        self._target = target
        wanted = tuple(sorted(options.answer_wanted))
        self._filter = PrivacyFilter(options=options.model_copy(update={"entities": wanted}))
        self._audit = Audit()

    @classmethod
    def make(cls, target: Target, options: PrivacyOptions | None) -> AnswerGuard | None:
        """A guard, if the options ask for one."""
        if options is None or not options.answers or not options.applies(foreign=False):
            return None
        return cls(target, options)

    def accepts(self, conversation: Conversation) -> bool:
        """Whether nothing is found in what the target wrote: its answers, and user turns after the first."""
        first_answer = conversation.turn_starts[1]
        text = self._target.tokenizer.decode(conversation.token_ids[first_answer:], skip_special_tokens=True)
        counts = Counter(finding.entity for finding in self._filter.scan(text))
        treated = Treated(None, dict(counts), "answer") if counts else Treated([text])
        self._audit.add(treated)
        return not counts

    def take_audit(self) -> Audit:
        """The counts since the last call."""
        taken, self._audit = self._audit, Audit()
        return taken
