"""A run's held-out prompts as workloads of its benchmark: the head has seen no answer to them."""

from __future__ import annotations

from fledge.base.errors import DataError
from fledge.bench.workloads import Prompt, Workload
from fledge.data import read_conversations, read_prompts
from fledge.data.prompt_store import TrainingPrompt

SOURCES, SELF = "held-out", "held-out self"  # of the recipe's sources; written by the target


def heldout_workloads(prompts_url: str, conversations_url: str, limit: int) -> list[Workload]:
    """At most `limit` held-out prompts: those of the recipe's sources, and the target's own in what room they leave."""
    heldout = {one.prompt_id for one in read_conversations(conversations_url, "heldout")}
    given: list[Prompt] = []
    own: list[Prompt] = []
    for prompt in read_prompts(prompts_url):
        if prompt.prompt_id in heldout:
            (own if prompt.source == "self" else given).append(_measured(prompt))
    given = given[:limit]
    workloads = Workload(SOURCES, tuple(given)), Workload(SELF, tuple(own[: limit - len(given)]))
    measured = [workload for workload in workloads if workload.prompts]
    if not measured:
        raise DataError(
            f"{conversations_url} has no held-out answers to {prompts_url}; raise respond.heldout, or set "
            "bench.heldout_prompts=0 and bench.own_prompts"
        )
    return measured


def _measured(prompt: TrainingPrompt) -> Prompt:
    return Prompt(
        prompt.prompt_id[:12],
        prompt.category,
        tuple(prompt.turns),
        prompt.system,
        prompt.tools,
        prompt.template_options,
    )
