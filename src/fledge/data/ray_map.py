"""The same stages on Ray Data: actors do the work shard by shard, this process writes what they return, in order.

    shard 0 1 2 3 ... ──► actors (each its own examiner, or target and engine) ──► in order ──► manifest

What a shard becomes depends on that shard alone, so the files are those of a local run, and a killed run goes on.
Actors read prompts themselves: the run folder must be reachable from all machines.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fledge.base.errors import DataError
from fledge.data.gathering import Batch, ExamineAll, Examined, ExaminerSettings, examiner

_SHARDS_PER_ACTOR = 4  # examined in one execution; more hides Ray's start, fewer keep less in memory


@dataclass(frozen=True)
class RayOptions:
    """Where to run, and on how many actors."""

    address: str  # of a cluster; "local" starts one on this machine
    actors: int = 2
    gpus: int = 0  # of each actor that holds a target; without them Ray hides the machine's


def examine_on_ray(settings: ExaminerSettings, ray_options: RayOptions) -> ExamineAll:
    """Examines batches in actors; results come in the batches' order."""

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
    """make(*arguments)(item) for each item, on Ray Data, in order. Each actor calls `make` once, and has `gpus`."""
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
            f"a Ray actor failed ({_last_line(error)}); finished shards are kept: see the actor's log, "
            "and run again to go on"
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
