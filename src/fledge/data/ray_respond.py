"""The respond stage on Ray Data: each actor holds a target and an engine and answers whole shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from fledge.base.console import plural
from fledge.base.storage import Manifest
from fledge.data.conversations import Answered, ConversationWriter
from fledge.data.dialogue import DialogueJobs
from fledge.data.generation import TokenRate, run_in_order
from fledge.data.options import Progress, RespondOptions, silent
from fledge.data.privacy import PrivacyOptions, write_audit
from fledge.data.privacy.filter import answer_scan, require_privacy_extra
from fledge.data.prompt_store import read_prompts
from fledge.data.ray_map import RayOptions, map_in_order
from fledge.data.responses import (
    RespondSummary,
    check_context,
    fit_to_prompts,
    respond_fingerprint,
    respond_summary,
)
from fledge.data.served import AnswerServer, run_served
from fledge.data.split import on_both_sides
from fledge.engine import Engine
from fledge.target import Target, TargetOptions


def respond_on_ray(
    target: Target,
    spec: TargetOptions,
    prompts_url: str,
    options: RespondOptions,
    output_url: str,
    ray_options: RayOptions,
    progress: Progress = silent,
    *,
    privacy: PrivacyOptions | None = None,
) -> RespondSummary:
    """`respond` with one target per actor. The files equal those of the local stage, for any number of actors."""
    if privacy is not None and privacy.answers:
        require_privacy_extra()
    fingerprint = respond_fingerprint(target, prompts_url, options, privacy)
    options = fit_to_prompts(target, prompts_url, options)
    if options.server is None:
        check_context(target.config.max_position_embeddings, options)
    prompts = Manifest.load(prompts_url).records
    fingerprint.claim(output_url)
    writer = ConversationWriter(output_url)
    shards = range(writer.shards, -(-prompts // options.shard_size))
    if shards:
        share = None if options.server is None else options.server.share_of(ray_options.actors)
        arguments = (spec, prompts_url, options.model_copy(update={"server": share}), privacy)
        answered = map_in_order(shards, _answerer, arguments, ray_options, gpus=ray_options.gpus)
        for shard, shard_answers in zip(shards, answered, strict=True):
            write_audit(output_url, writer.shards, *(answered.audit for answered in shard_answers))
            last = shard + 1 == shards.stop
            writer.write(on_both_sides(shard_answers, output_url, options.heldout) if last else shard_answers)
            progress(
                min(prompts, (shard + 1) * options.shard_size), prompts, plural(ray_options.actors, "actor")
            )
    return respond_summary(prompts, output_url)


def _answerer(
    spec: TargetOptions, prompts_url: str, options: RespondOptions, privacy: PrivacyOptions | None
) -> Callable[[int], list[Answered]]:
    """Answers all prompts of a shard, given its number."""
    target = spec.load()
    jobs = DialogueJobs(target, options, answer_scan(privacy), target.config.vocab_size)
    if options.server is not None:
        run = partial(run_served, AnswerServer(target, options.server))
    else:
        limit = min(options.longest_request, target.config.max_position_embeddings)
        run = partial(run_in_order, Engine(target, max_batch=options.max_batch, max_context=limit))

    def answer(shard: int) -> list[Answered]:
        size = options.shard_size
        prompts = islice(read_prompts(prompts_url, skip=shard * size), size)
        return list(run(map(jobs.job, prompts), TokenRate()))

    return answer
