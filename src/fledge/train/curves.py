"""The training curves as TensorBoard events: `tensorboard --logdir RUN/train`.

The file is written anew from all rows of metrics each time, so a resumed run leaves one curve without repetitions, and
it appears whole or not at all on any file system.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from fledge.storage import join, write_atomic

EVENTS_NAME = "events.out.tfevents.fledge"


def write_curves(url: str, rows: Sequence[Mapping[str, Any]], started: float) -> None:
    """Write the events; `started` is the wall-clock time at which training began, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            for row in rows:
                for name, value in _scalars(row):
                    writer.add_scalar(name, value, row["step"], walltime=started + row["seconds"])
        (path,) = Path(folder).iterdir()
        write_atomic(join(url, EVENTS_NAME), path.read_bytes())


def _scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if name in ("step", "seconds") or value is None:
            continue
        if isinstance(value, list):
            yield from ((f"{name}/{index + 1}", float(part)) for index, part in enumerate(value))
        else:
            yield name, float(value)
