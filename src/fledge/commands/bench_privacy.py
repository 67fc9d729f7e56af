"""The command `fledge bench privacy`: the privacy filter on a labelled corpus, beside Presidio's defaults."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fledge.commands.bench import Output


def bench_privacy(
    corpus: Annotated[str, typer.Option(help="labelled texts: presidio-research's form, or privacy masks")],
    clean: Annotated[
        str,
        typer.Option(
            help="prompts without personal data: a set as in `fledge bench server`, a file, or none"
        ),
    ] = "mixed",
    presidio: Annotated[bool, typer.Option(help="Presidio's defaults in the same run")] = True,
    output: Output = "privacy.json",
) -> None:
    """Measure the privacy filter on a labelled corpus, beside Presidio's."""
    from fledge.base.console import print_table, say
    from fledge.base.storage import refuse_unwritable, write_json
    from fledge.bench.privacy import measure_privacy, privacy_notes, privacy_table, read_corpus
    from fledge.bench.workloads import find_workload
    from fledge.data.privacy.filter import require_privacy_extra

    refuse_unwritable(output)
    require_privacy_extra()
    texts = read_corpus(corpus)
    prompts = [] if clean == "none" else [prompt.turns for prompt in find_workload(clean).prompts]
    measured = measure_privacy(texts, prompts, presidio)
    for scores in measured:
        print_table(scores.name, *privacy_table(scores))
    say(*map(privacy_notes, measured))
    write_json(output, [asdict(scores) for scores in measured])
    say(f"written: {output}")
