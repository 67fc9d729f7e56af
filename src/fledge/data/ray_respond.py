"""The respond stage on Ray Data: each actor holds a target and an engine and answers whole shards."""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

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
    respond_fingerprint,
    respond_summary,
)
from fledge.data.served import AnswerServer, run_served
from fledge.engine import Engine
from fledge.storage import Manifest
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
    """`respond` with a target per actor. Same files as the local stage, whatever the number of actors."""
    if privacy is not None and privacy.answers:
        require_privacy_extra()
    if options.server is None:
        check_context(target.config.max_position_embeddings, options)
    prompts = Manifest.load(prompts_url).records
    respond_fingerprint(target, prompts_url, options, privacy).claim(output_url)
    writer = ConversationWriter(output_url)
    shards = range(writer.shards, -(-prompts // options.shard_size))
    if shards:
        share = None if options.server is None else options.server.share_of(ray_options.actors)
        arguments = (spec, prompts_url, options.model_copy(update={"server": share}), privacy)
        answered = map_in_order(shards, _RespondActor, arguments, ray_options, gpus=ray_options.gpus)
        for shard, found in zip(shards, answered, strict=True):
            write_audit(output_url, writer.shards, *(answered.audit for answered in found))
            writer.write(found)
            progress(min(prompts, (shard + 1) * options.shard_size), prompts, f"{ray_options.actors} actors")
    return respond_summary(prompts, output_url)


class _RespondActor:
    def __init__(
        self,
        spec: TargetOptions,
        prompts_url: str,
        options: RespondOptions,
        privacy: PrivacyOptions | None,
    ) -> None:
        self._target = spec.load()
        self._server = AnswerServer(self._target, options.server) if options.server is not None else None
        if self._server is None:
            limit = min(options.longest_request, self._target.config.max_position_embeddings)
            self._engine = Engine(self._target, max_batch=options.max_batch, max_context=limit)
        self._jobs = DialogueJobs(self._target, options, answer_scan(privacy))
        self._prompts_url, self._size = prompts_url, options.shard_size

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        shard: int = pickle.loads(batch["item"][0])
        prompts = islice(read_prompts(self._prompts_url, skip=shard * self._size), self._size)
        jobs = (self._jobs.job(prompt) for prompt in prompts)
        answered: list[Answered] = list(
            run_in_order(self._engine, jobs, TokenRate())
            if self._server is None
            else run_served(self._server, jobs, TokenRate())
        )
        return {"result": [pickle.dumps(answered)]}
