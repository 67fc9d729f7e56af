"""Two Ray actors on this machine make the store of a local run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.data.ray_map import RayOptions
from fledge.data.ray_respond import TargetSpec
from fledge.features import FeatureOptions, extract_features, extract_features_on_ray
from fledge.features import extract as extract_module
from fledge.storage import Manifest
from tests.draft.tiny_head import load_tiny_target
from tests.features.test_features import make_conversations, write_conversations

ray = pytest.importorskip("ray")


@pytest.mark.slow
def test_two_actors_make_the_store_of_a_local_run_and_go_on_where_it_stopped(
    tiny_target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(extract_module, "bytes_per_token", lambda size, codec: 2**13)  # 128 tokens a shard
    target = load_tiny_target(tiny_target_folder)
    url = write_conversations(tmp_path / "conversations", make_conversations(40))
    options = FeatureOptions(batch_tokens=64, shard_mib=1)
    extract_features(target, url, options, str(tmp_path / "local"))
    shards = Manifest.load(str(tmp_path / "local")).shards
    assert len(shards) > 5

    def kill(done: float, total: float, note: str) -> None:
        if note and len(Manifest.load(str(tmp_path / "ray")).shards) == 2:
            raise KeyboardInterrupt

    spec = TargetSpec(str(tiny_target_folder), "float32", "cpu", "torch")
    places = url, options, str(tmp_path / "ray"), RayOptions("local", actors=2)
    try:
        with pytest.raises(KeyboardInterrupt):
            extract_features_on_ray(target, spec, *places, kill)
        extract_features_on_ray(target, spec, *places)
    finally:
        ray.shutdown()
    assert Manifest.load(str(tmp_path / "ray")).shards == shards
