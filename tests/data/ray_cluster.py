"""A Ray cluster of two nodes on this machine, one of which dies in the middle of a stage.

node A   shard 0   2   3 waits ......... goes on  5 ...
node B   shard 1   4 waits ... killed              | its shard is made again, on A or on the new node
gate     shut                           opened once node B is dead, and another one is in its place
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fledge.base.storage import Manifest, ShardEntry
from fledge.data.conversations import Answered
from fledge.data.ray_map import RayOptions
from fledge.data.ray_respond import _answerer
from fledge.features.ray_extract import _FeatureActor, _Part

ray = pytest.importorskip("ray")
# Ray runs its workers at niceness 15: on a machine that does anything else besides they'd hardly run at all.
os.environ.setdefault("RAY_worker_niceness", "0")
KILL_AFTER = 2  # shards in the manifest
HELD_FROM = 5  # the first shard that waits for the kill: Ray hands a result on when the next ones are there
_PATIENCE = 400  # seconds


class TwoNodes:
    """Room for one actor on each of two nodes, and for none on the head node, which survives."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._workers = [self._cluster.add_node(num_cpus=1) for _ in range(2)]
        self._cluster.wait_for_nodes()
        ray.init(address=self._cluster.address, log_to_driver=False, configure_logging=False)

    @property
    def options(self) -> RayOptions:
        return RayOptions(self._cluster.address, actors=2)

    def lose_one(self) -> None:
        """Kill a node with all its processes, and put another in its place, as a cluster with autoscaling would."""
        self._cluster.remove_node(self._workers.pop(), allow_graceful=False)
        self._workers.append(self._cluster.add_node(num_cpus=1))

    def shutdown(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """The cluster, gone afterwards."""
    made = TwoNodes()
    try:
        yield made
    finally:
        made.shutdown()


class Loss:
    """The `progress` of a stage: loses a node when the manifest at `folder` names its second shard."""

    def __init__(self, nodes: TwoNodes, folder: Path) -> None:
        self._nodes, self._folder = nodes, folder
        self._lost = False

    def __call__(self, done: float, total: float, note: str) -> None:
        if self._finished() < KILL_AFTER or self._lost:
            return
        self._lost = True
        assert ray.available_resources().get("CPU", 0) == 0  # each node has its actor
        self._nodes.lose_one()  # on the main thread, as Ray wants it; the actors go on meanwhile
        _gate(self._folder).touch()

    def check(self) -> None:
        """Raise unless a node was lost with shards left to make."""
        assert self._lost
        assert self._finished() >= HELD_FROM + 4
        deadline = time.monotonic() + _PATIENCE  # the cluster's own health checks take their time
        while all(node["Alive"] for node in ray.nodes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not all(node["Alive"] for node in ray.nodes())

    def _finished(self) -> int:
        return len(Manifest.load(str(self._folder)).shards)


def _gate(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.open"


def _wait(shard: int, folder: Path) -> None:
    started = time.monotonic()
    while shard >= HELD_FROM and not _gate(folder).exists():
        if time.monotonic() > started + _PATIENCE:
            raise RuntimeError("no node was killed")
        time.sleep(0.05)


def gated_answerer(*arguments: Any) -> Callable[[int], list[Answered]]:
    """Answers go to `conversations`, beside the folder of the prompts."""
    answer = _answerer(*arguments)
    _, prompts_url, _, _ = arguments

    def answer_behind_the_gate(shard: int) -> list[Answered]:
        _wait(shard, Path(prompts_url).parent / "conversations")
        return answer(shard)

    return answer_behind_the_gate


class GatedFeatureActor(_FeatureActor):
    def __call__(self, part: _Part) -> ShardEntry:
        _wait(part.shard, Path(self._output_url))
        return super().__call__(part)
