"""`fledge ablate`: train the recipe with one change at a time, and print what each change is worth."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.base.console import StageProgress, print_table, say
from fledge.base.errors import DataError
from fledge.base.storage import join, write_atomic
from fledge.bench.report.formats import markdown_table
from fledge.run.folder import Run
from fledge.train.ablation import check_rows, finished_rows, rows_for, run_row, table

TABLE_NAME = "ablation.md"
_COLUMNS = ("row", "changed", "tau", "to the recipe, 95 %", "seconds")


def run_ablation(run: Run, sizes: Sequence[int], names: Sequence[str]) -> None:
    """Train the rows (all, without names) at each size and write ablation/ablation.md."""
    if run.recipe.features.feed != "offline":
        raise DataError(
            "ablate needs all features stored: set features.feed=offline and run `fledge features`"
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
