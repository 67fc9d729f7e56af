"""fledge and llama.cpp on the same GGUF file: tokens a second, plain and speculating, in turn.

python -m benchmarks.same_file FILE.gguf ... --llama-cpp BUILD/bin [--repeats 6]

llama.cpp is timed by its own llama-bench and, eight requests at once, llama-batched-bench, whose prefill isn't counted;
both decode plainly. fledge answers prompts of the workload `mixed`, with the released head where it fits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

from fledge.bench.workloads import find_workload
from fledge.engine import Engine
from fledge.released import load_pair
from fledge.target import TargetOptions

_TOKENS, _PROMPT, _TOGETHER = 96, 64, 8


def alone(engine: Engine, prompts: list[list[int]]) -> float:
    """Tokens a second of decoding, one request at a time."""
    tokens = took = 0.0
    for prompt in prompts:
        times = [
            time.perf_counter()
            for piece in engine.stream_sync(prompt, max_tokens=_TOKENS, ignore_eos=True)
            for _ in piece.token_ids
        ]
        tokens, took = tokens + len(times) - 1, took + times[-1] - times[0]
    return tokens / took


def together(engine: Engine, prompts: list[list[int]]) -> float:
    """Tokens a second of all requests at once, prefill included."""
    begun = time.perf_counter()
    answers = engine.generate(prompts, max_tokens=_TOKENS, ignore_eos=True)
    return sum(len(answer.token_ids) for answer in answers) / (time.perf_counter() - begun)


def llama_bench(folder: Path, file: Path) -> float:
    """Tokens a second of llama.cpp's plain decode, one request."""
    command = [str(folder / "llama-bench"), "-m", str(file), "-t", "2", "-p", "0", "-n", str(_TOKENS)]
    done = subprocess.run([*command, "-r", "1", "-o", "json"], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def llama_batched_bench(folder: Path, file: Path) -> float:
    """Tokens a second of llama.cpp's plain decode, eight requests at once."""
    sizes = ["-npp", str(_PROMPT), "-ntg", str(_TOKENS), "-npl", str(_TOGETHER), "-c", "4096"]
    command = [
        str(folder / "llama-batched-bench"),
        "-m",
        str(file),
        "-t",
        "2",
        *sizes,
        "--output-format",
        "jsonl",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    return float(found["speed_tg"])


def main() -> None:
    """Print a table: a line for each file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_file", description=__doc__)
    parser.add_argument("models", nargs="+", help="GGUF files, or packages that hold one")
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--repeats", type=int, default=6)
    asked = parser.parse_args()
    for model in asked.models:
        target, head = load_pair(TargetOptions(model=model), None)
        prompts = [target.chat.prompt_ids(p.messages) for p in find_workload("mixed").prompts[:_TOGETHER]]
        engines = {"plain": Engine(target, max_batch=_TOGETHER, max_context=1024, prefix_cache=False)}
        if head is not None:
            engines["head"] = Engine(target, head, max_batch=_TOGETHER, max_context=1024, prefix_cache=False)
        for engine in engines.values():
            engine.generate(prompts, max_tokens=_TOKENS, ignore_eos=True)  # warm; the planner learns
        found: dict[str, list[float]] = {}
        for _ in range(asked.repeats):
            found.setdefault("llama.cpp, 1", []).append(llama_bench(asked.llama_cpp, target.place))
            found.setdefault("llama.cpp, 8", []).append(llama_batched_bench(asked.llama_cpp, target.place))
            for name, engine in engines.items():
                found.setdefault(f"{name}, 1", []).append(alone(engine, prompts[:4]))
                found.setdefault(f"{name}, 8", []).append(together(engine, prompts))
        print(f"{target.name}, {target.quantization}, tokens/s (and ratio to llama.cpp within a repeat):")
        for name, values in found.items():
            theirs = found[f"llama.cpp, {name[-1]}"]
            ratio = statistics.median(a / b for a, b in zip(values, theirs, strict=True))
            print(f"  {name}: {statistics.median(values):.0f} ({ratio:.2f})", flush=True)


if __name__ == "__main__":
    main()
