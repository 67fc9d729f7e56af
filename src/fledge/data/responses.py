"""The `respond` stage: every prompt is answered by the target, through one always full engine."""

from __future__ import annotations

from dataclasses import dataclass

from fledge import storage
from fledge.data.conversations import (
    Conversation,
    ConversationStatistics,
    conversation_statistics,
    shard_bytes,
)
from fledge.data.dialogue import DialogueJobs
from fledge.data.generation import TokenRate, run_in_order
from fledge.data.options import Progress, RespondOptions, silent
from fledge.data.privacy import AuditWriter, PrivacyOptions
from fledge.data.privacy.answers import AnswerGuard
from fledge.data.prompt_store import read_prompts
from fledge.data.prompts import target_parts
from fledge.engine import Engine
from fledge.errors import DataError
from fledge.storage import Fingerprint, Manifest, make_fingerprint
from fledge.target import Target

FORMAT = 1


@dataclass(frozen=True)
class RespondSummary:
    """What a folder of conversations holds."""

    prompts: int
    skipped: int  # prompts longer than max_prompt_tokens, and answers with personal data
    statistics: ConversationStatistics


def respond(
    target: Target,
    engine: Engine,
    prompts_url: str,
    options: RespondOptions,
    output_url: str,
    progress: Progress = silent,
    privacy: PrivacyOptions | None = None,
) -> RespondSummary:
    """Answer all prompts of a folder into another one, or go on where an earlier call stopped.

    A shard holds the conversations of `shard_size` prompts in a row. It is written when the last of them is done,
    while the engine is at work on the next shards already.
    """
    _check_context(engine, options)
    prompts = Manifest.load(prompts_url).records
    respond_fingerprint(target, prompts_url, options, privacy).claim(output_url)
    manifest = Manifest.load(output_url)
    guard = AnswerGuard.make(target, privacy)
    audits = AuditWriter(output_url, len(manifest.shards)) if guard is not None else None
    done = min(len(manifest.shards) * options.shard_size, prompts)
    progress(done, prompts, "")
    rate = TokenRate()
    jobs = DialogueJobs(target, options)
    shard: list[Conversation] = []
    results = run_in_order(
        engine, (jobs.job(prompt) for prompt in read_prompts(prompts_url, skip=done)), rate
    )
    try:
        for conversation in results:
            done += 1
            if conversation is not None and (guard is None or guard.accepts(conversation)):
                shard.append(conversation)
            if done % options.shard_size == 0 or done == prompts:
                if guard is not None and audits is not None:
                    audits.write(guard.take_audit())
                manifest = _write(manifest, shard)
                shard = []
            progress(done, prompts, f"{rate.per_second():,.0f} tokens/s")
    finally:
        results.close()
    if not manifest.records:
        raise DataError(f"every prompt in {prompts_url} is too long; raise respond.max_prompt_tokens")
    return RespondSummary(prompts, prompts - manifest.records, conversation_statistics(output_url))


def respond_fingerprint(
    target: Target, prompts_url: str, options: RespondOptions, privacy: PrivacyOptions | None = None
) -> Fingerprint:
    """What the stage's output depends on."""
    prompts = Manifest.load(prompts_url)
    if not prompts.records:
        raise DataError(f"no prompts in {prompts_url}; run `fledge prompts` first or name another folder")
    shards = "".join(shard.sha256 for shard in prompts.shards)
    parts = {
        "stage": "respond",
        "format": FORMAT,
        "target": target_parts(target),
        "respond": options.model_dump(mode="json", exclude={"max_batch"}),
        "prompts": storage.sha256(shards.encode()),
    }
    if privacy is not None and privacy.answers and privacy.applies(foreign=False):
        parts["privacy"] = privacy.fingerprint_parts()
    return make_fingerprint(parts)


def _write(manifest: Manifest, shard: list[Conversation]) -> Manifest:
    name = f"conversations-{len(manifest.shards):05d}.parquet"
    tokens = sum(len(conversation.token_ids) for conversation in shard)
    return manifest.write_shard(name, shard_bytes(shard), records=len(shard), tokens=tokens)


def _check_context(engine: Engine, options: RespondOptions) -> None:
    if options.longest_request > engine.max_context:
        raise DataError(
            f"answers may need {options.longest_request} tokens of context, the engine has {engine.max_context}; "
            "lower respond.max_prompt_tokens or respond.max_new_tokens"
        )
