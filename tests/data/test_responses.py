"""The target's answers: ids and mask exactly as generated, the same in any batch and after any kill."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from fledge.base import storage
from fledge.base.errors import DataError, FingerprintError, StorageError
from fledge.data import (
    PromptOptions,
    RespondOptions,
    conversation_statistics,
    make_prompts,
    read_conversations,
    read_prompts,
    respond,
)
from fledge.engine import Engine
from fledge.target import Target
from tests.data.conftest import Killed, files_of, killed_at_write, kills

OPTIONS = RespondOptions(
    max_new_tokens=24, shard_size=7, second_turn=0.5, user_max_tokens=64, user_temperature=1.0, heldout=0.3
)


def make_engine(target: Target, max_batch: int) -> Engine:
    return Engine(target, max_batch=max_batch, max_context=1280, kv_tokens=16384)


@pytest.fixture(scope="module")
def prompts(target: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("respond") / "prompts")
    options = PromptOptions(count=24, max_tokens=24, temperature=1.0, min_words=2, mix={"chat": 1, "code": 1})
    make_prompts(target, make_engine(target, 8), options, folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(target: Target, prompts: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("respond") / "conversations"
    respond(target, make_engine(target, 8), prompts, OPTIONS, str(folder))
    return folder


def test_the_mask_covers_exactly_what_the_target_generated(
    target: Target, prompts: str, undisturbed: Path
) -> None:
    texts = {prompt.prompt_id: prompt.turns[0] for prompt in read_prompts(prompts)}
    conversations = list(read_conversations(str(undisturbed)))
    assert [c.prompt_id for c in conversations] == list(texts)
    ends = target.chat.turn_end_ids
    for c in conversations:
        asked = target.chat.prompt_ids([{"role": "user", "content": texts[c.prompt_id]}])
        assert c.token_ids[: len(asked)] == asked
        borders = [*c.turn_starts, len(c.token_ids)]
        assert borders[1] == len(asked)
        assert len(borders) in (3, 5)
        for turn, (start, stop) in enumerate(itertools.pairwise(borders)):
            assert c.loss_mask[start:stop] == [turn % 2 == 1] * (stop - start)
            if turn % 2 == 1:  # an answer ends with the turn end, unless it is the last one and was cut
                closed = c.token_ids[stop - 1] in ends
                assert closed == (stop < len(c.token_ids) or c.finish_reason == "stop")
                assert not ends.intersection(c.token_ids[start : stop - 1])


def test_greedy_answers_are_what_generate_gives(target: Target, undisturbed: Path) -> None:
    engine = make_engine(target, 4)
    greedy = [c for c in read_conversations(str(undisturbed)) if c.temperature == 0]
    assert greedy
    for c in greedy:
        [answer] = engine.generate([c.token_ids[: c.turn_starts[-1]]], max_tokens=OPTIONS.max_new_tokens)
        assert answer.token_ids == c.token_ids[c.turn_starts[-1] :]
        assert answer.finish_reason == c.finish_reason


def test_second_turns_go_on_from_the_first_ids_as_serving_would(target: Target, undisturbed: Path) -> None:
    longer = [c for c in read_conversations(str(undisturbed)) if len(c.turn_starts) == 4]
    assert longer
    for c in longer:
        _, answer, user, second = c.turn_starts
        text = target.tokenizer.decode(c.token_ids[:second])
        first, reply = (
            target.tokenizer.decode(ids) for ids in (c.token_ids[:answer], c.token_ids[answer:user])
        )
        question = text[len(first) + len(reply) :].removeprefix("\n<|im_start|>user\n").split("<|im_end|>")[0]
        messages = [
            {"role": "user", "content": first.removeprefix("<|im_start|>user\n").split("<|im_end|>")[0]},
            {"role": "assistant", "content": reply.removesuffix("<|im_end|>")},
            {"role": "user", "content": question},
        ]
        assert question.strip()
        assert target.tokenizer.decode(target.chat.prompt_ids(messages)) == text


def test_the_batch_does_not_matter(target: Target, prompts: str, undisturbed: Path, tmp_path: Path) -> None:
    respond(target, make_engine(target, 1), prompts, OPTIONS, str(tmp_path))
    assert files_of(tmp_path) == files_of(undisturbed)


@pytest.mark.parametrize(("write", "after"), kills(range(9)))
def test_killed_at_any_write_and_started_again_the_files_are_the_same(
    target: Target, prompts: str, undisturbed: Path, tmp_path: Path, write: int, after: bool
) -> None:
    with killed_at_write(write, after):
        respond(target, make_engine(target, 4), prompts, OPTIONS, str(tmp_path))
    respond(target, make_engine(target, 8), prompts, OPTIONS, str(tmp_path))
    assert files_of(tmp_path) == files_of(undisturbed)


def test_the_engine_stays_full_across_shards(target: Target, prompts: str, tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"shard_size": 2, "second_turn": 0.0})
    engine = make_engine(target, 8)
    respond(target, engine, prompts, options, str(tmp_path))
    stats = engine.stats()
    assert stats.request_rounds / stats.rounds > 4  # two prompts a shard would give at most 2


def test_temperatures_and_splits_follow_their_shares_and_the_prompt_alone(
    target: Target, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    first = list(read_conversations(str(undisturbed)))
    assert {c.temperature for c in first} == {0.0, 0.7, 1.0}
    assert {c.split for c in first} == {"train", "heldout"}
    respond(target, make_engine(target, 8), prompts, OPTIONS.model_copy(update={"seed": 5}), str(tmp_path))
    other = list(read_conversations(str(tmp_path)))
    assert [c.split for c in other] == [c.split for c in first]  # a prompt never changes sides
    assert [c.token_ids for c in other] != [c.token_ids for c in first]
    heldout = [c.prompt_id for c in first if c.split == "heldout"]
    assert [c.prompt_id for c in read_conversations(str(undisturbed), split="heldout")] == heldout


def test_an_answers_temperature_does_not_depend_on_the_order_they_are_named_in(
    target: Target, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    turned = OPTIONS.model_copy(update={"temperatures": dict(reversed(OPTIONS.temperatures.items()))})
    respond(target, make_engine(target, 8), prompts, turned, str(tmp_path))
    assert list(read_conversations(str(tmp_path))) == list(read_conversations(str(undisturbed)))


def test_statistics_count_what_is_there(undisturbed: Path) -> None:
    conversations = list(read_conversations(str(undisturbed)))
    statistics = conversation_statistics(str(undisturbed))
    assert statistics.conversations == len(conversations)
    assert statistics.tokens == sum(len(c.token_ids) for c in conversations)
    assert statistics.supervised_tokens == sum(sum(c.loss_mask) for c in conversations)
    assert statistics.turns == sum(len(c.turn_starts) // 2 for c in conversations)
    assert sum(statistics.temperatures.values()) == len(conversations)
    assert sum(statistics.finish_reasons.values()) == len(conversations)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_second_turns_are_as_frequent_as_asked(
    target: Target, prompts: str, tmp_path: Path, share: float
) -> None:
    options = OPTIONS.model_copy(update={"second_turn": share})
    respond(target, make_engine(target, 8), prompts, options, str(tmp_path))
    longer = [len(c.turn_starts) == 4 for c in read_conversations(str(tmp_path))]
    assert any(longer) == (share > 0)


def test_the_longest_prompt_of_a_later_turn_is_still_answered(
    target: Target, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    longest = max(c.turn_starts[3] for c in read_conversations(str(undisturbed)) if len(c.turn_starts) == 4)
    for name, most in (("just", longest), ("less", longest - 1)):
        options = OPTIONS.model_copy(update={"max_prompt_tokens": most})
        respond(target, make_engine(target, 8), prompts, options, str(tmp_path / name))
        starts = [
            c.turn_starts[3] for c in read_conversations(str(tmp_path / name)) if len(c.turn_starts) == 4
        ]
        assert (longest in starts) == (most == longest)


def test_prompts_that_are_too_long_are_skipped_and_counted(
    target: Target, prompts: str, tmp_path: Path
) -> None:
    lengths = sorted(
        len(target.chat.prompt_ids([{"role": "user", "content": p.turns[0]}])) for p in read_prompts(prompts)
    )
    options = OPTIONS.model_copy(update={"max_prompt_tokens": lengths[12], "second_turn": 0.0})
    summary = respond(target, make_engine(target, 8), prompts, options, str(tmp_path / "some"))
    assert summary.skipped == sum(length > lengths[12] for length in lengths) > 0
    assert summary.statistics.conversations == summary.prompts - summary.skipped
    none = options.model_copy(update={"max_prompt_tokens": 1})
    with pytest.raises(DataError, match=r"too long; raise respond\.max_prompt_tokens"):
        respond(target, make_engine(target, 8), prompts, none, str(tmp_path / "none"))


def test_an_engine_too_small_is_refused_before_any_work(target: Target, prompts: str, tmp_path: Path) -> None:
    engine = Engine(target, max_batch=2, max_context=256, kv_tokens=1024)
    options = OPTIONS.model_copy(update={"max_prompt_tokens": 1024})
    with pytest.raises(DataError, match="1088 tokens of context, but the engine has 256; lower"):
        respond(target, engine, prompts, options, str(tmp_path))
    assert files_of(tmp_path) == {}


def test_other_prompts_in_the_same_folder_are_refused(
    target: Target, engine: Engine, undisturbed: Path, tmp_path: Path
) -> None:
    options = PromptOptions(count=2, max_tokens=24, temperature=1.0, min_words=2, seed=9, mix={"chat": 1})
    make_prompts(target, engine, options, str(tmp_path))
    with pytest.raises(FingerprintError, match="prompts: "):
        respond(target, make_engine(target, 8), str(tmp_path), OPTIONS, str(undisturbed))


def test_a_damaged_shard_of_prompts_is_named(target: Target, prompts: str, tmp_path: Path) -> None:
    for name, data in files_of(Path(prompts)).items():
        storage.write_atomic(
            str(tmp_path / "prompts" / name), data[:-1] if name.startswith("prompts-") else data
        )
    with pytest.raises(StorageError, match=r"prompts-00000\.parquet is damaged"):
        respond(target, make_engine(target, 8), str(tmp_path / "prompts"), OPTIONS, str(tmp_path / "out"))


def test_missing_prompts_or_conversations_are_clear_errors(
    target: Target, engine: Engine, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="no prompts in"):
        respond(target, make_engine(target, 2), str(tmp_path), OPTIONS, str(tmp_path / "out"))
    with pytest.raises(DataError, match="no conversations in"):
        list(read_conversations(str(tmp_path)))


def test_answers_of_another_backend_do_not_go_on_where_the_first_stopped(
    target: Target, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "conversations")

    def stop(done: int, total: int, rate: str) -> None:
        if done > OPTIONS.shard_size:
            raise Killed

    with pytest.raises(Killed):
        respond(target, make_engine(target, 8), prompts, OPTIONS, folder, stop)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Target, "backend", property(lambda self: "another"))
        with pytest.raises(
            FingerprintError, match=r"begun with the backend .* decodes with 'another on cpu'"
        ):
            respond(target, make_engine(target, 8), prompts, OPTIONS, folder)
    assert respond(target, make_engine(target, 8), prompts, OPTIONS, folder).prompts == 24
