"""The value of a run's head in sentences, and the commands that use it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fledge.base import llama_server
from fledge.base.console import plural
from fledge.base.storage import exists, read_json
from fledge.bench import TRAINED, Summary
from fledge.bench.report.formats import times
from fledge.bench.summary import WorkloadSummary
from fledge.heads.checkpoint import CONFIG_NAME
from fledge.run.folder import Run
from fledge.run.heldout import SELF, SOURCES
from fledge.sources.gguf import is_gguf
from fledge.train.evaluation import EVALUATION_NAME

_FEWEST = 8  # prompts: the interval of fewer means nothing


def outcome(run: Run, summary: Summary | None) -> list[str]:
    """Acceptance, speed-up, whether it pays, and the commands; nothing before there is a head."""
    if not exists(run.url("head", CONFIG_NAME)):
        return []
    evaluation = None
    if exists(run.url(EVALUATION_NAME)) and not run.of_earlier_head("evaluate"):
        evaluation = read_json(run.url(EVALUATION_NAME))
    lines = []
    if evaluation is not None:
        lines.append(
            f"acceptance: {evaluation['overall']['tau']:.2f} tokens per verify (tau) in chains of "
            f"{evaluation['depth']}, on {plural(evaluation['conversations'], 'held-out conversation')}"
        )
    if summary is not None and summary.head == TRAINED:
        lines += _speed(summary)
    lines.append(f"serve it: {serve_command(run)}")
    model, head = shlex.quote(run.recipe.target.model), shlex.quote(run.url("head"))
    if is_gguf(Path(run.recipe.target.model)):
        lines += _in_llama_cpp(evaluation, model, head, shlex.quote(run.url("head.gguf")))
    return lines


def serve_command(run: Run) -> str:
    """The command that serves the run's target with its head."""
    return shlex.join(["fledge", "serve", run.recipe.target.model, "--head", run.url("head")])


def _speed(summary: Summary) -> list[str]:
    name = next((one for one in (SOURCES, SELF) if one in summary.workloads), next(iter(summary.workloads)))
    measured = summary.workloads[name]
    if measured.speedup is None:
        return [f"speed-up: not measured, the answers to {name} are too short"]
    line = f"speed-up in fledge, one request: {times(measured.speedup)}"
    if summary.without_lookup is not None:
        line += f", without prompt lookup {times(summary.without_lookup.workloads[name].speedup)}"
    return [f"{line} ({name}, {plural(measured.prompts, 'prompt')}); {_verdict(measured)}"]


def _verdict(measured: WorkloadSummary) -> str:
    low, high = measured.speedup_low or 0.0, measured.speedup_high or 0.0
    if measured.prompts < _FEWEST:
        return "too few to tell whether it pays on this machine"
    if low > 1:
        return f"it pays on this machine (95 %: {low:.2f} to {high:.2f})"
    if high < 1:
        return f"it doesn't pay on this machine (95 %: {low:.2f} to {high:.2f}): serve with --plain"
    return f"it may or may not pay on this machine (95 %: {low:.2f} to {high:.2f})"


def _in_llama_cpp(evaluation: dict[str, Any] | None, model: str, head: str, exported: str) -> list[str]:
    tau = ""
    if evaluation is not None:
        greedy = evaluation["by_temperature"].get("0", evaluation["overall"])
        expected = 1 + sum(greedy["by_depth"][: llama_server.CHAIN])
        tau = f" (of {llama_server.CHAIN}: tau about {expected:.2f} on those conversations)"
    return [
        f"or with llama.cpp, which drafts chains of a fixed length{tau}:",
        f"  fledge export {head} {exported} --form gguf --target {model}",
        f"  {llama_server.command(model, exported)}",
        "what a verify costs there isn't measured: compare its tokens per second with and without -md",
    ]
