"""The respond stage on Ray Data: each actor holds a target and an engine and answers whole shards."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from fledge.data.conversations import Answered
from fledge.data.dialogue import DialogueJobs
from fledge.data.generation import TokenRate, run_in_order
from fledge.data.options import RespondOptions
from fledge.data.privacy import PrivacyOptions
from fledge.data.privacy.filter import answer_scan
from fledge.data.prompt_store import read_prompts
from fledge.data.ray_map import RayOptions, map_in_order
from fledge.data.served import AnswerServer, run_served
from fledge.engine import Engine
from fledge.target import TargetOptions


@dataclass(frozen=True)
class AnswerActors:
    """Actors that answer in place of one engine; the files are the same for any number of them."""

    target: TargetOptions  # each loads it
    ray: RayOptions

    def answers(
        self, prompts_url: str, options: RespondOptions, privacy: PrivacyOptions | None, shards: range
    ) -> Generator[Answered, None, None]:
        """The outcomes of all prompts of these shards, in order."""
        if not shards:
            return
        share = None if options.server is None else options.server.share_of(self.ray.actors)
        arguments = (self.target, prompts_url, options.model_copy(update={"server": share}), privacy)
        for answered in map_in_order(shards, _answerer, arguments, self.ray, gpus=self.ray.gpus):
            yield from answered


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
