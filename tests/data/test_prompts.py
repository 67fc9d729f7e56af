"""The target writes prompts: deterministic, resumable, filtered, each reject counted and never stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fledge.base import storage
from fledge.base.errors import DataError, FingerprintError
from fledge.data import Opening, PromptOptions, make_prompts, prompt_summary, read_prompts
from fledge.engine import Engine
from fledge.target import Target
from tests.data.conftest import Killed, files_of, killed_at_write, kills

OPTIONS = PromptOptions(
    count=12,
    max_tokens=24,
    temperature=1.0,
    shard_size=10,
    mix={"chat": 1, "code": 1, "stem": 1},
    min_words=2,
)


@pytest.fixture(scope="module")
def undisturbed(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts") / "undisturbed"
    engine = Engine(target, max_batch=4, max_context=512, kv_tokens=8192)
    make_prompts(target, engine, OPTIONS, str(folder))
    return folder


def test_as_many_prompts_as_wanted_each_from_an_opening(undisturbed: Path) -> None:
    prompts = list(read_prompts(str(undisturbed)))
    assert len(prompts) == OPTIONS.count
    assert len({prompt.prompt_id for prompt in prompts}) == OPTIONS.count
    assert {prompt.category for prompt in prompts} <= {"chat", "code", "stem"}
    assert all(len(prompt.turns) == 1 and prompt.source == "self" for prompt in prompts)
    assert list(read_prompts(str(undisturbed), skip=7)) == prompts[7:]


def test_every_attempt_is_a_prompt_or_a_reject_with_a_reason(undisturbed: Path) -> None:
    summary = prompt_summary(str(undisturbed))
    assert summary.prompts == OPTIONS.count
    assert summary.attempts == summary.prompts + sum(summary.rejected.values())
    assert summary.rejected["cut"] > 0
    assert sum(summary.categories.values()) == summary.prompts


def test_the_batch_does_not_matter(target: Target, undisturbed: Path, tmp_path: Path) -> None:
    engine = Engine(target, max_batch=1, max_context=512, kv_tokens=8192)
    make_prompts(target, engine, OPTIONS, str(tmp_path / "single"))
    assert files_of(tmp_path / "single") == files_of(undisturbed)


def test_another_seed_gives_other_prompts(
    target: Target, engine: Engine, undisturbed: Path, tmp_path: Path
) -> None:
    make_prompts(target, engine, OPTIONS.model_copy(update={"seed": 1}), str(tmp_path))
    assert {p.prompt_id for p in read_prompts(str(tmp_path))}.isdisjoint(
        p.prompt_id for p in read_prompts(str(undisturbed))
    )


@pytest.mark.parametrize(("write", "after"), kills(range(9)))
def test_killed_at_any_write_and_started_again_the_files_are_the_same(
    target: Target, engine: Engine, undisturbed: Path, tmp_path: Path, write: int, after: bool
) -> None:
    with killed_at_write(write, after):
        make_prompts(target, engine, OPTIONS, str(tmp_path))
    make_prompts(target, engine, OPTIONS, str(tmp_path))
    assert files_of(tmp_path) == files_of(undisturbed)
    assert not engine.busy


def test_a_finished_stage_is_not_done_again(target: Target, engine: Engine, undisturbed: Path) -> None:
    before = files_of(undisturbed)
    seen: list[float] = []
    make_prompts(target, engine, OPTIONS, str(undisturbed), lambda done, total, note: seen.append(done))
    assert files_of(undisturbed) == before
    assert seen == [OPTIONS.count]
    assert engine.stats().rounds == 0


def test_prompts_of_another_backend_do_not_go_on_where_the_first_stopped(
    target: Target, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int, rate: str) -> None:
        if done:
            raise Killed

    with pytest.raises(Killed):
        make_prompts(target, engine, OPTIONS, str(tmp_path), stop)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Target, "backend", property(lambda self: "another"))
        with pytest.raises(FingerprintError, match="decodes with 'another on cpu'"):
            make_prompts(target, engine, OPTIONS, str(tmp_path))
    assert make_prompts(target, engine, OPTIONS, str(tmp_path)).prompts == OPTIONS.count


def test_other_options_in_the_same_folder_are_refused_by_name(
    target: Target, engine: Engine, undisturbed: Path
) -> None:
    with pytest.raises(FingerprintError, match=r"prompts\.temperature: 1\.0 -> 0\.9"):
        make_prompts(target, engine, OPTIONS.model_copy(update={"temperature": 0.9}), str(undisturbed))


def test_prompts_in_an_evaluation_file_are_removed(
    target: Target, engine: Engine, undisturbed: Path, tmp_path: Path
) -> None:
    kept = list(read_prompts(str(undisturbed)))
    evaluation = tmp_path / "evaluation.jsonl"
    planted = [kept[2].turns[0], kept[5].turns[0].upper()]
    evaluation.write_text("\n".join(json.dumps({"turns": [text]}) for text in planted))
    options = OPTIONS.model_copy(update={"evaluation_files": (str(evaluation),)})
    summary = make_prompts(target, engine, options, str(tmp_path / "out"))
    left = {prompt.prompt_id for prompt in read_prompts(str(tmp_path / "out"))}
    assert summary.rejected["evaluation"] == 2
    assert kept[2].prompt_id not in left
    assert kept[5].prompt_id not in left
    assert {prompt.prompt_id for prompt in kept} - left == {kept[2].prompt_id, kept[5].prompt_id}


def test_the_text_of_a_reject_is_nowhere(target: Target, engine: Engine, tmp_path: Path) -> None:
    secret = "Zanzibar"
    options = PromptOptions(
        count=3,
        max_tokens=24,
        temperature=1.0,
        min_words=2,
        openings=(Opening(category="x", text="What"), Opening(category="y", text=f"{secret} Answer:\nA: b")),
    )
    summary = make_prompts(target, engine, options, str(tmp_path))
    assert summary.rejected["answered"] > 0
    stored = files_of(tmp_path)
    fingerprint = stored.pop(storage.FINGERPRINT_NAME)
    assert secret.encode() in fingerprint  # the recipe's own words
    assert not any(secret.encode() in data for data in stored.values())


def test_the_turn_ends_with_the_text_it_is_to_end_with(
    target: Target, engine: Engine, tmp_path: Path
) -> None:
    opening = Opening(category="x", text="def f(e):", until="e")
    options = PromptOptions(count=5, max_tokens=32, temperature=1.0, openings=(opening,), min_words=2)
    make_prompts(target, engine, options, str(tmp_path))
    for prompt in read_prompts(str(tmp_path)):
        assert prompt.turns[0].startswith("def f(e):")
        assert (
            prompt.turns[0].removeprefix("def f(e):").index("e")
            == len(prompt.turns[0]) - len("def f(e):") - 1
        )


def test_a_stage_that_keeps_nothing_gives_up_with_reasons(
    target: Target, engine: Engine, tmp_path: Path
) -> None:
    options = PromptOptions(count=2, max_tokens=8, temperature=1.0, min_words=200, max_attempts=1)
    with pytest.raises(
        DataError, match=r"only 0 of 2 prompts after 200 attempts \(rejected: .*too_short.*raise"
    ):
        make_prompts(target, engine, options, str(tmp_path))
    assert not engine.busy


def test_a_mix_without_openings_is_refused(target: Target, engine: Engine, tmp_path: Path) -> None:
    options = PromptOptions(mix={"poetry": 1.0})
    with pytest.raises(DataError, match=r"no opening has the category poetry; use .*chat"):
        make_prompts(target, engine, options, str(tmp_path))


def test_prompts_can_live_on_any_file_system(target: Target, engine: Engine, undisturbed: Path) -> None:
    url = "memory://prompts-test/out"
    make_prompts(target, engine, OPTIONS, url)
    assert list(read_prompts(url)) == list(read_prompts(str(undisturbed)))
    storage.remove("memory://prompts-test")
