"""Answers and features on a Ray cluster of two nodes, one of them killed midway: the files of a local run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from fledge.data import PromptOptions, RespondOptions, make_prompts, respond
from fledge.data.ray_map import RayOptions
from fledge.data.ray_respond import TargetSpec, respond_on_ray
from fledge.engine import Engine
from fledge.features import FeatureOptions, FeatureStore, extract, extract_features, ray_extract
from fledge.features.ray_extract import extract_features_on_ray
from fledge.storage import Manifest
from fledge.target import Target
from tests.data.conftest import files_of
from tests.data.test_mixing import CHAT, sentences, write_lines

ray = pytest.importorskip("ray")
PROMPTS, SHARD = 48, 3


class TwoNodes:
    """A cluster whose head does no work, and two workers with room for two actors each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self.workers = [self._add() for _ in range(2)]
        self.cluster.wait_for_nodes()
        ray.init(address=self.cluster.address, log_to_driver=False, configure_logging=False)

    def _add(self) -> Any:
        return self.cluster.add_node(num_cpus=3)

    def kill_one(self) -> None:
        self.cluster.remove_node(self.workers.pop(), allow_graceful=False)
        self.workers.append(self._add())  # as a cluster with autoscaling would

    def alive(self) -> int:
        return sum(node["Alive"] for node in ray.nodes())


@pytest.fixture
def nodes() -> Iterator[TwoNodes]:
    made = TwoNodes()
    yield made
    ray.shutdown()
    made.cluster.shutdown()


class Killer:
    """Kills a node when a stage's manifest names its third shard; `progress` of that stage."""

    def __init__(self, nodes: TwoNodes, folder: Path) -> None:
        self.killed = Event()
        self.shards = 0  # finished when the node went
        self._nodes, self._folder = nodes, folder

    def __call__(self, done: float, total: float, note: str) -> None:
        shards = len(Manifest.load(str(self._folder)).shards)
        if shards >= 3 and not self.killed.is_set():
            self.killed.set()
            self.shards = shards
            Thread(target=self._nodes.kill_one).start()


@pytest.mark.slow
def test_a_node_lost_midway_changes_no_byte(
    nodes: TwoNodes,
    target: Target,
    talking_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert nodes.alive() == 3
    rows = [{"turns": [text]} for text in sentences(CHAT, PROMPTS, 0)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    options = PromptOptions(count=PROMPTS, shard_size=8, sources=({"path": path, "licence": "own"},))
    prompts = str(tmp_path / "prompts")
    make_prompts(target, None, options, prompts)
    kept = Manifest.load(prompts).records
    assert kept > 30
    spec = TargetSpec(str(talking_folder), "float32", "cpu", "torch")
    cluster = RayOptions(nodes.cluster.address, actors=2)

    answers = RespondOptions(max_new_tokens=24, shard_size=SHARD, max_batch=2)
    engine = Engine(target, max_batch=2, max_context=1280, kv_tokens=4096)
    here, there = tmp_path / "local", tmp_path / "ray"
    respond(target, engine, prompts, answers, str(here / "conversations"))
    killer = Killer(nodes, there / "conversations")
    respond_on_ray(target, spec, prompts, answers, str(there / "conversations"), cluster, killer)
    assert 3 <= killer.shards < len(Manifest.load(str(there / "conversations")).shards) - 3
    assert files_of(there / "conversations") == files_of(here / "conversations")

    for module in (extract, ray_extract):  # shards of a few conversations, so that there are many
        monkeypatch.setattr(module, "shard_tokens", lambda hidden_size, options: 200)
    stored = FeatureOptions(batch_tokens=128)
    source = str(here / "conversations")
    extract_features(target, source, stored, str(here / "features"))
    killer = Killer(nodes, there / "features")
    extract_features_on_ray(target, spec, source, stored, str(there / "features"), cluster, killer)
    assert len(FeatureStore(str(there / "features")).samples) == kept
    assert files_of(there / "features") == files_of(here / "features")
    assert 3 <= killer.shards < len(Manifest.load(str(there / "features")).shards) - 3
