"""The `prompts` stage: synthesise, filter, write, until enough prompts are there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import Any

from fledge import storage
from fledge.data.filters import Limits, reject_reason
from fledge.data.generation import TokenRate, run_in_order
from fledge.data.openings import DEFAULT_MIX, DEFAULT_OPENINGS
from fledge.data.options import Progress, PromptOptions, silent
from fledge.data.overlap import EvaluationIndex, RepeatIndex, read_evaluation_texts
from fledge.data.privacy import Audit, AuditWriter, PrivacyFilter, PrivacyOptions
from fledge.data.prompt_store import Prompt, PromptSummary, PromptWriter, Reject, prompt_summary, read_prompts
from fledge.data.seeds import salted_hash, text_id
from fledge.data.synthesis import Draft, PromptWriterJobs
from fledge.data.turns import encode_plain
from fledge.data.words import PLACEHOLDERS
from fledge.engine import Engine
from fledge.errors import DataError
from fledge.storage import Fingerprint, make_fingerprint
from fledge.target import Target

FORMAT = 1
_FEW = 200  # attempts after which "almost nothing passes" is no accident


def make_prompts(
    target: Target,
    engine: Engine,
    options: PromptOptions,
    output_url: str,
    progress: Progress = silent,
    privacy: PrivacyOptions | None = None,
) -> PromptSummary:
    """Write `options.count` prompts into a folder, or go on where an earlier call stopped."""
    fingerprint = prompts_fingerprint(target, options, privacy)
    fingerprint.claim(output_url)
    writer = PromptWriter(output_url)
    treats = privacy is not None and privacy.applies(foreign=False)
    selection = Selection(
        target, options, salt=fingerprint.digest, privacy=PrivacyFilter(options=privacy) if treats else None
    )
    accepted = 0
    for prompt in read_prompts(output_url) if writer.shards else ():
        selection.remember(prompt.turns[0])
        accepted += 1
    progress(accepted, options.count, "")
    if accepted < options.count:
        _synthesise(target, engine, options, writer, selection, accepted, progress)
    return prompt_summary(output_url)


def prompts_fingerprint(
    target: Target, options: PromptOptions, privacy: PrivacyOptions | None = None
) -> Fingerprint:
    """What the stage's output depends on."""
    chosen = options.model_dump(mode="json", exclude={"evaluation_files", "max_attempts", "max_batch"})
    if options.openings is None:
        shipped = [opening.model_dump(mode="json") for opening in DEFAULT_OPENINGS]
        chosen["openings"] = storage.sha256(repr((shipped, DEFAULT_MIX, PLACEHOLDERS)).encode())
    files = sorted(storage.sha256(storage.read_bytes(url)) for url in options.evaluation_files)
    parts = {
        "stage": "prompts",
        "format": FORMAT,
        "target": target_parts(target),
        "prompts": chosen,
        "evaluation_files": files,
    }
    if privacy is not None and privacy.applies(foreign=False):
        parts["privacy"] = privacy.fingerprint_parts()
    return make_fingerprint(parts)


def target_parts(target: Target) -> dict[str, Any]:
    """The fields of a fingerprint that name a target."""
    return {"revision": target.revision, "template": target.chat.hash, "dtype": str(target.dtype)}


class Selection:
    """Decides which drafts stay, in the order of their attempts."""

    def __init__(
        self, target: Target, options: PromptOptions, salt: str, privacy: PrivacyFilter | None = None
    ) -> None:
        self._limits = Limits(options.min_words, options.max_words)
        self._special_tokens = [str(token) for token in target.tokenizer.all_special_tokens]
        self._repeats = RepeatIndex(options.near_repeat)
        self._evaluation = EvaluationIndex(read_evaluation_texts(options.evaluation_files))
        self._salt = salt
        self._privacy = privacy
        self.audit = Audit()  # of the personal data in the drafts judged since it was last taken

    def remember(self, text: str) -> None:
        """Count later drafts against this text."""
        self._repeats.add(text)

    def judge(self, draft: Draft) -> Prompt | Reject:
        """Keep a draft as a prompt, or say why not."""
        reason = draft.reason or reject_reason(draft.text, self._limits, self._special_tokens)
        if reason is None and draft.text in self._evaluation:
            reason = "evaluation"
        text = draft.text
        if reason is None and self._privacy is not None:
            treated = self._privacy.treat(text)
            self.audit.add(treated)
            text, reason = treated.text or "", f"privacy_{treated.reason}" if treated.reason else None
        reason = reason or self._repeats.reason(text)
        if reason is not None:
            return Reject(draft.attempt, draft.category, reason, salted_hash(self._salt, draft.text))
        self.remember(text)
        return Prompt(text_id([text]), "self", draft.category, [text])

    @property
    def treats(self) -> bool:
        """Whether personal data is looked for."""
        return self._privacy is not None

    def take_audit(self) -> Audit:
        """The counts since the last call."""
        taken, self.audit = self.audit, Audit()
        return taken


@dataclass
class _Shard:
    """Attempts judged since the last shard was written."""

    prompts: list[Prompt]
    rejects: list[Reject]

    @property
    def attempts(self) -> int:
        return len(self.prompts) + len(self.rejects)


def _synthesise(
    target: Target,
    engine: Engine,
    options: PromptOptions,
    writer: PromptWriter,
    selection: Selection,
    accepted: int,
    progress: Progress,
) -> None:
    jobs = PromptWriterJobs(target, options)
    first = writer.shards * options.shard_size
    rate = TokenRate()
    reasons: Counter[str] = Counter()
    shard = _Shard([], [])
    audits = AuditWriter(writer.url, writer.shards) if selection.treats else None
    results = run_in_order(engine, (jobs.job(attempt) for attempt in count(first)), rate)
    try:
        for draft in results:
            judged = selection.judge(draft)
            if isinstance(judged, Prompt):
                shard.prompts.append(judged)
                accepted += 1
            else:
                shard.rejects.append(judged)
                reasons[judged.reason] += 1
            _check_yield(draft.attempt + 1, accepted, options, reasons)
            done = accepted == options.count
            if done or shard.attempts == options.shard_size:
                tokens = sum(len(encode_plain(target, prompt.turns[0])) for prompt in shard.prompts)
                if (
                    audits is not None
                ):  # first, so that a shard of prompts is the sign that its counts are there
                    audits.write(selection.take_audit())
                writer.write(shard.prompts, shard.rejects, tokens)
                shard = _Shard([], [])
            kept = accepted / (draft.attempt + 1)
            progress(accepted, options.count, f"{rate.per_second():,.0f} tokens/s, {kept:.0%} kept")
            if done:
                return
    finally:
        results.close()


def _check_yield(attempts: int, accepted: int, options: PromptOptions, reasons: Counter[str]) -> None:
    if attempts < max(_FEW, options.max_attempts * options.count):
        return
    common = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common(3))
    raise DataError(
        f"only {accepted} of {options.count} prompts after {attempts} attempts (rejected: {common}); "
        "raise prompts.max_tokens, lower prompts.temperature, or allow more with prompts.max_attempts"
    )
