"""`fledge evaluate --head HEAD`, and `--head A --head B`: what heads are worth, without serving them."""

from __future__ import annotations

from collections.abc import Mapping

from fledge.base.console import StageProgress, print_table, say
from fledge.engine import TreeShape
from fledge.engine.round_cost import rounds_over_plain
from fledge.heads import head_runner
from fledge.released import load_head
from fledge.run.folder import Run
from fledge.train import Acceptance, evaluate
from fledge.train.compare import compare_heads


def print_evaluation(run: Run, head_name: str) -> None:
    """Print a head's acceptance on the run's held-out conversations, and the speed-up to expect on this machine."""
    head = load_head(run.target, head_name)
    with StageProgress("evaluate") as progress:
        result = evaluate(run.target, head, run.url("features"), run.recipe.evaluate, None, progress.update)
    rows = [("all", result.overall)]
    parts: Mapping[str, Mapping[str, Acceptance]] = {
        "": result.by_category,
        "temperature ": result.by_temperature,
        "context up to ": result.by_context,
    }
    rows += [(f"{prefix}{name}", part) for prefix, part_of in parts.items() for name, part in part_of.items()]
    print_table(
        f"Chains of {result.depth} on {result.conversations} held-out conversations",
        ["", "tau", "rounds", "ended by a vocabulary miss", "accepted by depth, %"],
        [
            (
                name,
                f"{a.tau:.2f}",
                f"{a.rounds:,}",
                f"{a.misses:.1%}",
                " ".join(f"{100 * d:2.0f}" for d in a.by_depth),
            )
            for name, a in rows
        ],
    )
    if not result.serving:
        why = "no greedy held-out answers"
        if "0" in result.by_temperature:
            limit = run.recipe.evaluate.shape_tokens
            why = f"evaluate.shapes and evaluate.shape_tokens ({limit}) leave no greedy held-out answer to draft"
        say(f"{why}: tau of trees in serving can't be predicted")
        return
    shapes = {name: TreeShape(*map(int, name.split(","))) for name in result.serving}
    costs = rounds_over_plain(run.target.decoder, head_runner(run.target, head), shapes.values())
    print_table(
        "Predicted in serving: greedy, one request",
        ["depth, topk, nodes", "tau", "a round over a plain step", "speed-up"],
        [
            (name, f"{a.tau:.2f}", f"{costs[shapes[name]]:.2f}", f"{a.tau / costs[shapes[name]]:.2f}×")
            for name, a in result.serving.items()
        ],
    )


def print_comparison(run: Run, given: tuple[str, str]) -> None:
    """Print the second head against the first on the run's held-out conversations."""
    heads = [load_head(run.target, name) for name in given]
    with StageProgress("compare") as progress:
        rows = compare_heads(run.target, heads, run.url("features"), run.recipe.evaluate, progress.update)
    print_table(
        f"Chain tau: A = {given[0]}, B = {given[1]}",
        ["on", "conversations", "A", "B", "B - A, 95 %"],
        [
            (
                d.name,
                str(d.conversations),
                f"{d.tau[0]:.3f}",
                f"{d.tau[1]:.3f}",
                f"{d.low:+.3f} .. {d.high:+.3f}",
            )
            for d in rows
        ],
    )
    overall = rows[0]
    better = "B" if overall.low > 0 else "A"
    verdict = f"{better} is better" if overall.certain else "these conversations can't tell the heads apart"
    say(verdict)
