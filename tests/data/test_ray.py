"""Two Ray actors on this machine give the files of a local run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fledge.data import PromptOptions, RespondOptions, make_prompts, respond
from fledge.data.ray_map import RayOptions
from fledge.data.ray_respond import TargetSpec, respond_on_ray
from fledge.engine import Engine
from fledge.errors import DataError
from fledge.target import Target
from tests.data.conftest import files_of
from tests.data.test_mixing import CHAT, sentences, write_lines

ray = pytest.importorskip("ray")


@pytest.mark.slow
def test_two_actors_give_the_same_records_as_a_local_run(
    target: Target, talking_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"turns": [text, "And then?"] if n % 3 else [text]} for n, text in enumerate(sentences(CHAT, 40, 0))
    ]
    path = write_lines(tmp_path / "rows.jsonl", [*rows, rows[0], {"turns": 3}])
    Path(path).write_text(Path(path).read_text() + "{broken\n" + json.dumps({"turns": ["Hi"]}))
    options = PromptOptions(count=20, shard_size=6, sources=({"path": path, "licence": "own"},))
    answers = RespondOptions(max_new_tokens=12, shard_size=5, max_batch=4)
    spec = TargetSpec(str(talking_folder), "float32", "cpu", "torch")
    cluster = RayOptions("local", actors=2)
    try:
        make_prompts(target, None, options, str(tmp_path / "local/prompts"))
        make_prompts(target, None, options, str(tmp_path / "ray/prompts"), ray=cluster)
        assert files_of(tmp_path / "ray/prompts") == files_of(tmp_path / "local/prompts")
        engine = Engine(target, max_batch=4, max_context=1280, kv_tokens=8192)
        here = [str(tmp_path / "local" / name) for name in ("prompts", "conversations")]
        there = [str(tmp_path / "ray" / name) for name in ("prompts", "conversations")]
        respond(target, engine, here[0], answers, here[1])
        summary = respond_on_ray(target, spec, there[0], answers, there[1], cluster)
        assert summary.statistics.conversations == 20
        assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")
    finally:
        ray.shutdown()


def test_the_targets_own_prompts_are_not_spread(target: Target, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leave --ray out, or add sources"):
        make_prompts(target, None, PromptOptions(), str(tmp_path), ray=RayOptions("local"))
