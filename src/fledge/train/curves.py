"""The training curves as TensorBoard events: `tensorboard --logdir RUN/train`.

The file is rewritten from all metrics each time, so a resumed run leaves one curve without repeated points, and
the write is atomic on any file system. With `train.wandb_project` the same rows go to Weights & Biases.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fledge.base.errors import RecipeError
from fledge.base.storage import join, sha256, write_atomic
from fledge.train.options import TrainOptions

logger = logging.getLogger("fledge")

EVENTS_NAME = "events.out.tfevents.fledge"


def write_curves(url: str, rows: Sequence[Mapping[str, Any]], started: float) -> None:
    """Write the events, if tensorboardX is installed; `started`: when training began, wall clock in seconds."""
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError:
        logger.warning("no curves for TensorBoard: run pip install 'fledge[train]'")
        return
    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            for row in rows:
                for name, value in _scalars(row):
                    writer.add_scalar(name, value, row["step"], walltime=started + row["seconds"])
        (path,) = Path(folder).iterdir()
        write_atomic(join(url, EVENTS_NAME), path.read_bytes())


def refuse_without_wandb(options: TrainOptions) -> None:
    """Raise a RecipeError if a project is named and the package isn't installed."""
    if options.wandb_project is not None and find_spec("wandb") is None:
        raise RecipeError(
            "train.wandb_project needs a package: pip install 'fledge[wandb]', or set train.wandb_project=null"
        )


class Tracker:
    """The recipe's Weights & Biases project; does nothing without one."""

    def __init__(self, options: TrainOptions, train_url: str, *, leads: bool) -> None:
        """The run's id is derived from the folder, so a resumed training continues the same curves.

        Raises a RecipeError if a project is named and the package isn't installed.
        """
        self._run: Any = None
        if options.wandb_project is None or not leads:
            return
        refuse_without_wandb(options)
        import wandb

        self._run = wandb.init(
            project=options.wandb_project,
            id=sha256(train_url.encode())[:16],
            name=train_url,
            resume="allow",
            config=options.model_dump(mode="json"),
        )

    def log(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics."""
        if self._run is not None:
            self._run.log(dict(_scalars(row)), step=row["step"])

    def close(self) -> None:
        """Mark the run as finished; an interrupted one stays open and continues later."""
        if self._run is not None:
            self._run.finish()


def _scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if name in ("step", "seconds") or value is None:
            continue
        if isinstance(value, list):
            yield from ((f"{name}/{index + 1}", float(part)) for index, part in enumerate(value))
        else:
            yield name, float(value)
