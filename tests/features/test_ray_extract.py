"""Two Ray actors make the store of a local run, also where the run is stopped or an actor dies with its node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fledge.base.storage import Manifest
from fledge.features import FeatureOptions, extract_features, extract_features_on_ray, ray_extract
from fledge.features import extract as extract_module
from fledge.target import Target, TargetOptions
from tests.data.conftest import files_of
from tests.features.test_features import make_conversations, write_conversations

ray = pytest.importorskip("ray")

from tests.data.ray_cluster import GatedFeatureActor, Loss, TwoNodes, two_nodes  # noqa: E402

OPTIONS = FeatureOptions(batch_tokens=64, shard_mib=1)


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes() as made:
        yield made


@pytest.fixture
def conversations(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Enough for nine shards of 128 tokens; beside them `local`, their store from this process."""
    monkeypatch.setattr(extract_module, "bytes_per_token", lambda size, codec: 2**13)
    url = write_conversations(tmp_path / "conversations", make_conversations(60))
    extract_features(target, url, OPTIONS, str(tmp_path / "local"))
    assert len(Manifest.load(str(tmp_path / "local")).shards) >= 9
    return url


@pytest.mark.slow
@pytest.mark.distributed
def test_two_actors_make_the_store_of_a_local_run_and_go_on_where_it_stopped(
    nodes: TwoNodes, target: Target, tiny_target_folder: Path, conversations: str, tmp_path: Path
):
    def kill(done: float, total: float, note: str) -> None:
        if note and len(Manifest.load(str(tmp_path / "ray")).shards) == 2:
            raise KeyboardInterrupt

    spec = TargetOptions(model=str(tiny_target_folder), dtype="float32", backend="torch")
    places = conversations, OPTIONS, str(tmp_path / "ray"), nodes.options
    with pytest.raises(KeyboardInterrupt):
        extract_features_on_ray(target, spec, *places, kill)
    extract_features_on_ray(target, spec, *places)
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")


@pytest.mark.slow
@pytest.mark.distributed
def test_a_node_lost_midway_changes_no_byte(
    nodes: TwoNodes,
    target: Target,
    tiny_target_folder: Path,
    conversations: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ray_extract, "_FeatureActor", GatedFeatureActor)
    spec = TargetOptions(model=str(tiny_target_folder), dtype="float32", backend="torch")
    loss = Loss(nodes, tmp_path / "ray")
    extract_features_on_ray(target, spec, conversations, OPTIONS, str(tmp_path / "ray"), nodes.options, loss)
    loss.check()
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")
