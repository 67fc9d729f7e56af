"""The same stages on Ray Data: actors process shards, and this process writes their results in order.

    shard 0 1 2 3 ... ──► actors (each its own examiner, or target and engine) ──► in order ──► manifest

A shard's result depends on that shard alone, so the files equal those of a local run, and a killed run can resume.
Actors read prompts themselves: all machines must have access to the run folder.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fledge.base.errors import DataError
from fledge.data.gathering import Batch, ExamineAll, Examined, ExaminerSettings, examiner

_SHARDS_PER_ACTOR = 4  # examined per execution; more amortise Ray's start, fewer use less memory


@dataclass(frozen=True)
class RayOptions:
    """The cluster and the number of actors."""

    address: str  # of a cluster; "local" starts one on this machine
    actors: int = 2
    gpus: int = 0  # per actor that holds a target; with 0, Ray hides the machine's GPUs


def examine_on_ray(settings: ExaminerSettings, ray_options: RayOptions) -> ExamineAll:
    """Examine batches in actors; results come in the batches' order."""

    def run(batches: Iterable[Batch]) -> Iterator[Examined]:
        remaining = iter(batches)
        while window := list(islice(remaining, _SHARDS_PER_ACTOR * ray_options.actors)):
            yield from map_in_order(window, examiner, (settings,), ray_options)

    return run


def map_in_order(
    items: Iterable[Any],
    make: Callable[..., Callable[[Any], Any]],
    arguments: tuple[Any, ...],
    ray_options: RayOptions,
    *,
    gpus: int = 0,
) -> Iterator[Any]:
    """make(*arguments)(item) for each item, on Ray Data, in order. Each actor calls `make` once and has `gpus` GPUs."""
    ray = _connected(ray_options)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    rows = [{"item": pickle.dumps(item)} for item in items]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Actor,
        fn_constructor_args=(make, arguments),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(ray_options.actors, len(rows))),
        num_gpus=gpus or None,
    )
    try:
        for row in dataset.iter_rows():
            yield pickle.loads(row["result"])
    except ray.exceptions.RayError as error:
        raise DataError(
            f"a Ray actor failed ({_last_line(error)}); finished shards are kept: check the actor's log "
            "and run again to resume"
        ) from error


class _Actor:
    def __init__(self, make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
        self._work = make(*arguments)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"result": [pickle.dumps(self._work(pickle.loads(batch["item"][0])))]}


def _connected(ray_options: RayOptions) -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise DataError("--ray needs a package: pip install 'fledge[ray]'") from error
    if not ray.is_initialized():
        local = ray_options.address == "local"
        try:
            ray.init(
                address=None if local else ray_options.address,
                num_cpus=ray_options.actors + 1 if local else None,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise DataError(
                f"can't reach Ray at {ray_options.address} ({_last_line(error)}); check the address, or use `local`"
            ) from error
    return ray


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
