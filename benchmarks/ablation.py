"""Which choices train a better head on the same data: one training per row, each compared with the first row.

    python -m benchmarks.ablation my.yaml --run-dir runs/my --row random --response-tokens 250000

    ablation/250000/recipe/         head/  train/  row.json      the recipe as it is: the baseline
    ablation/250000/random/         ...                          one thing changed
    ablation/1000000/recipe/ ...

All rows of one size see the same conversations in the same order and are evaluated on the same held-out answers. An
interrupted ablation resumes where it stopped; finished rows are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
import typer

from benchmarks import command
from fledge.base.checksums import unsealed
from fledge.base.console import StageProgress, print_table, say
from fledge.base.errors import DataError, StorageError
from fledge.base.fingerprint import make_fingerprint
from fledge.base.storage import exists, join, read_bytes, write_atomic, write_sealed
from fledge.bench.report.formats import markdown_table
from fledge.commands.described import described_run, resumable
from fledge.commands.main import RunDir, Settings
from fledge.data.options import Progress, silent
from fledge.features import FeatureStore
from fledge.heads import Head
from fledge.run.folder import Run
from fledge.target import Target
from fledge.train.acceptance import Acceptance
from fledge.train.compare import TauDifference, round_counts, tau_difference
from fledge.train.evaluation import heldout_rounds
from fledge.train.options import EvaluateOptions, TrainOptions
from fledge.train.trainer import train

BASE = "recipe"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    BASE: {},
    "random": {"init": "random"},
    "from-target": {"init": "target"},
    "fast": {"learning_rate": 2e-3, "muon_learning_rate": 0.02},
    "even-steps": {"step_decay": 1.0},
}
ROW_NAME, TABLE_NAME = "row.json", "ablation.md"
_COLUMNS = ("row", "changed", "tau", "to the recipe, 95 %", "seconds")
_OF_A_NEW_HEAD = {"init"}  # fixed when training continues from train.init_head


@dataclass(frozen=True)
class AblationRow:
    """One finished training."""

    size: int  # response tokens at most
    name: str
    changes: Mapping[str, Any]  # of the recipe
    response_tokens: int  # trained on, each counted once
    steps: int
    seconds: float
    tau: float  # chains of evaluate.depth on the held-out answers
    acceptance: list[float]
    counts: list[list[float]]  # per held-out conversation: tokens emitted, rounds
    made_from: str  # digest of the inputs that comparable rows share

    def against(self, base: AblationRow) -> TauDifference:
        """This row minus the base, on the same conversations."""
        if self.made_from != base.made_from:
            raise DataError(
                f"rows {base.name} and {self.name} of {self.size:,} tokens come from different features or were "
                "evaluated differently; delete the folder `ablation` and run this again"
            )
        return tau_difference(self.name, torch.tensor([base.counts, self.counts], dtype=torch.float64))


def rows_for(options: TrainOptions) -> list[str]:
    """The rows that change something about this recipe's training."""
    fixed = _OF_A_NEW_HEAD if options.init_head is not None else set()
    return [name for name, changes in VARIANTS.items() if not fixed & changes.keys()]


def check_rows(options: TrainOptions, names: Sequence[str]) -> None:
    """Raise a DataError for a name that isn't a row of this ablation."""
    rows = rows_for(options)
    for name in names:
        if name not in rows:
            context = " when training continues from train.init_head" if name in VARIANTS else ""
            raise DataError(f"no row {name!r}{context}; the rows are {', '.join(rows)}")


def run_row(
    target: Target,
    features_url: str,
    options: TrainOptions,
    evaluation: EvaluateOptions,
    size: int,
    name: str,
    output_url: str,
    progress: Progress = silent,
) -> AblationRow:
    """Train and evaluate one row into a folder, or read the result of an earlier call.

    Raises a DataError for a name that isn't a row, a FingerprintError if the folder holds a row of another recipe.
    """
    check_rows(options, [name])
    changed = TrainOptions.model_validate(
        options.model_dump(exclude_unset=True) | dict(VARIANTS[name]) | {"response_tokens": size}
    )
    store = FeatureStore(features_url)
    train_url, head_url, row_url = (join(output_url, part) for part in ("train", "head", ROW_NAME))
    summary = train(target, features_url, changed, head_url, train_url, progress)
    made_from = make_fingerprint(
        {
            "features": [shard.sha256 for shard in store.manifest.shards],
            "evaluate": evaluation.model_dump(mode="json"),
            "recipe": options.model_dump(
                mode="json", exclude={"log_every", "checkpoint_seconds", "wandb_project"}
            ),
        }
    ).digest
    if exists(row_url):
        row = _read(row_url)
        if row.made_from == made_from:
            return row
    heldout = heldout_rounds(target, Head.load(head_url), store, evaluation, progress)
    acceptance = Acceptance.of((r for r, _ in heldout.rounds), evaluation.depth)
    row = AblationRow(
        size=size,
        name=name,
        changes=dict(VARIANTS[name]),
        response_tokens=summary.supervised_tokens,
        steps=summary.steps,
        seconds=round(summary.seconds, 1),
        tau=acceptance.tau,
        acceptance=acceptance.by_depth,
        counts=round_counts(heldout).tolist(),
        made_from=made_from,
    )
    write_sealed(row_url, asdict(row))
    return row


def finished_rows(folder: str, size: int) -> list[AblationRow]:
    """The finished rows of one size, in the table's order."""
    urls = (join(folder, str(size), name, ROW_NAME) for name in VARIANTS)
    return [_read(url) for url in urls if exists(url)]


def table(rows: Sequence[AblationRow]) -> list[tuple[str, str, str, str, str]]:
    """Name, changes, tau, difference from the base with its 95 % interval, seconds; for rows of one size."""
    base = next((row for row in rows if row.name == BASE), None)
    lines = []
    for row in rows:
        gap = row.against(base) if base is not None and row is not base else None
        changes = ", ".join(f"{key}={value}" for key, value in row.changes.items()) or "as it is"
        gain = f"{gap.tau[1] - gap.tau[0]:+.3f} ({gap.low:+.3f} .. {gap.high:+.3f})" if gap else ""
        lines.append((row.name, changes, f"{row.tau:.3f}", gain, f"{row.seconds:,.0f}"))
    return lines


def _read(url: str) -> AblationRow:
    try:
        return AblationRow(**unsealed(json.loads(read_bytes(url))))
    except (TypeError, ValueError) as error:
        raise StorageError(f"{url} is not a row of an ablation ({error}); delete it and run again") from error


def run_ablation(run: Run, sizes: Sequence[int], names: Sequence[str]) -> None:
    """Train the rows (all, without names) at each size and write ablation/ablation.md."""
    if run.recipe.features.feed != "offline":
        raise DataError(
            "an ablation needs all features stored: set features.feed=offline and run `fledge features`"
        )
    run.check_exists()
    check_rows(run.train_options, names)  # before the rows ahead of a misspelt one are trained
    folder = run.url("ablation")
    with run.locked():
        for size in sizes:
            for name in names or rows_for(run.train_options):
                with StageProgress(f"{name} {size:,}") as progress:
                    run_row(
                        run.target,
                        run.url("features"),
                        run.train_options,
                        run.recipe.evaluate,
                        size,
                        name,
                        join(folder, str(size), name),
                        progress.update,
                    )
    text = ""
    for size in sizes:
        rows = finished_rows(folder, size)
        tokens = rows[0].response_tokens
        lines = table(rows)
        title = f"{tokens:,} response tokens, held-out chain tau"
        print_table(title, _COLUMNS, lines, text_columns=2)
        text += f"{title}\n\n{markdown_table(_COLUMNS, lines)}\n\n"
    write_atomic(join(folder, TABLE_NAME), text.encode())
    say(join(folder, TABLE_NAME))


def main(
    settings: Settings = None,
    run_dir: RunDir = None,
    row: Annotated[
        list[str] | None, typer.Option(help="only this row (recipe, random, fast, ...); repeatable")
    ] = None,
    response_tokens: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="size of the training data; repeatable; by default 250000, 1000000 and 4000000"
        ),
    ] = None,
) -> None:
    """Show what each choice of a recipe is worth in tau.

    Trains the recipe as it is, then with one thing changed at a time.
    """
    stored = described_run(settings, run_dir)
    with resumable():
        run_ablation(stored, response_tokens or [250_000, 1_000_000, 4_000_000], row or [])


if __name__ == "__main__":
    command.run(main)
