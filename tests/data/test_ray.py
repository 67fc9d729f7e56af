"""Two Ray actors give the files of a local run, also where one dies with its node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fledge.base.errors import DataError
from fledge.data import PromptOptions, RespondOptions, make_prompts, ray_respond, respond
from fledge.data.ray_map import RayOptions
from fledge.data.ray_respond import AnswerActors
from fledge.engine import Engine
from fledge.target import Target, TargetOptions
from tests.data.conftest import files_of, made_by_no_backend
from tests.data.test_mixing import CHAT, sentences, write_lines

ray = pytest.importorskip("ray")

from tests.data.ray_cluster import Loss, gated_answerer, two_nodes  # noqa: E402


@pytest.mark.slow
@pytest.mark.distributed
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
    spec = TargetOptions(model=str(talking_folder), dtype="float32", backend="torch")
    cluster = RayOptions("local", actors=2)
    try:
        make_prompts(target, None, options, str(tmp_path / "local/prompts"))
        make_prompts(target, None, options, str(tmp_path / "ray/prompts"), ray=cluster)
        assert files_of(tmp_path / "ray/prompts") == files_of(tmp_path / "local/prompts")
        engine = Engine(target, max_batch=4, max_context=1280, kv_tokens=8192)
        here = [str(tmp_path / "local" / name) for name in ("prompts", "conversations")]
        there = [str(tmp_path / "ray" / name) for name in ("prompts", "conversations")]
        respond(target, engine, here[0], answers, here[1])
        summary = respond(target, AnswerActors(spec, cluster), there[0], answers, there[1])
        assert summary.statistics.conversations == 20
        assert files_of(tmp_path / "ray") == made_by_no_backend(tmp_path / "local")
    finally:
        ray.shutdown()


def test_answers_too_long_for_the_target_are_refused_before_any_actor_starts(
    target: Target, talking_folder: Path, tmp_path: Path
) -> None:
    spec = TargetOptions(model=str(talking_folder), dtype="float32", backend="torch")
    options = RespondOptions(max_prompt_tokens=target.config.max_position_embeddings)
    places = str(tmp_path / "prompts"), options, str(tmp_path / "conversations")
    path = write_lines(tmp_path / "rows.jsonl", [{"turns": [text]} for text in sentences(CHAT, 4, 0)])
    sources = ({"path": path, "licence": "own"},)
    make_prompts(target, None, PromptOptions(count=4, sources=sources), places[0])
    with pytest.raises(DataError, match=r"answers may need \d+ tokens of context, but the engine has 2048"):
        respond(target, AnswerActors(spec, RayOptions("local")), *places)
    assert not ray.is_initialized()
    assert not (tmp_path / "conversations").exists()


@pytest.mark.slow
@pytest.mark.distributed
def test_a_node_lost_midway_changes_no_answer(
    target: Target, talking_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"turns": [text]} for text in sentences(CHAT, 24, 0)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    options = PromptOptions(count=24, shard_size=8, sources=({"path": path, "licence": "own"},))
    prompts = str(tmp_path / "ray" / "prompts")
    make_prompts(target, None, options, prompts)
    answers = RespondOptions(max_new_tokens=16, shard_size=2, max_batch=2)
    engine = Engine(target, max_batch=2, max_context=1280, kv_tokens=4096)
    here, there = tmp_path / "conversations", tmp_path / "ray" / "conversations"
    respond(target, engine, prompts, answers, str(here))
    monkeypatch.setattr(ray_respond, "_answerer", gated_answerer)
    spec = TargetOptions(model=str(talking_folder), dtype="float32", backend="torch")
    with two_nodes() as nodes:
        loss = Loss(nodes, there)
        respond(target, AnswerActors(spec, nodes.options), prompts, answers, str(there), loss)
        loss.check()
    assert files_of(there) == made_by_no_backend(here)


def test_the_targets_own_prompts_are_not_spread(target: Target, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leave --ray out, or add sources"):
        make_prompts(target, None, PromptOptions(), str(tmp_path), ray=RayOptions("local"))
