from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from fledge.base.errors import DataError, FingerprintError, HeadError, RecipeError, StorageError
from fledge.data.conversations import Conversation
from fledge.features import FeatureOptions, FeatureStore, SampleInfo, extract_features
from fledge.heads import Head
from fledge.target import Target
from fledge.train import EvaluateOptions, TrainOptions, evaluate, refuse_untrainable, train
from fledge.train.batches import epoch_batches
from fledge.train.checkpoint import Checkpoint, seconds_between
from fledge.train.compare import compare_heads
from fledge.train.evaluation import context_bound
from fledge.train.loss import own_loss_gradient_
from tests.base.forked import forked
from tests.features.test_features import make_conversations, write_conversations
from tests.heads.tiny_head import load_tiny_target, random_head
from tests.tiny import TinyShape, save_tiny_target

OPTIONS = TrainOptions(
    draft_vocab_size=128,
    ttt_steps=3,
    epochs=1.7,
    batch_tokens=128,
    learning_rate=3e-3,
    evaluate_every=4,
    log_every=2,
    checkpoint_seconds=1e-9,
)


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return load_tiny_target(tiny_target_folder, "bfloat16")


@pytest.fixture(scope="module")
def features(target: Target, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Features of 48 conversations that count upwards in steps of three: something a head can learn at once."""
    folder = tmp_path_factory.mktemp("features")
    counting: list[Conversation] = []
    for number, conversation in enumerate(make_conversations(48)):
        n = len(conversation.token_ids)
        counting.append(replace(conversation, token_ids=[(7 * number + 3 * i) % 120 for i in range(n)]))
    url = write_conversations(folder / "conversations", counting)
    extract_features(target, url, FeatureOptions(batch_tokens=256, shard_mib=1), str(folder / "features"))
    return str(folder / "features")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train" / "metrics.jsonl").read_text().splitlines()]


def run(target: Target, features: str, folder: Path, options: TrainOptions = OPTIONS, progress=None):
    return train(
        target,
        features,
        options,
        str(folder / "head"),
        str(folder / "train"),
        progress or (lambda d, t, n: None),
    )


def run_until_killed(
    target: Target, features: str, folder: Path, last_step: int, options: TrainOptions = OPTIONS
) -> None:
    def kill(done: float, total: float, note: str) -> None:
        if done == last_step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(target, features, folder, options, kill)


@pytest.fixture(scope="module")
def undisturbed(target: Target, features: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    run(target, features, folder)
    return folder


def test_training_reads_only_the_ends_of_the_target(
    target: Target, features: str, undisturbed: Path, tmp_path: Path
) -> None:
    fresh = Target.load(str(target.folder))
    run(fresh, features, tmp_path)
    assert not {"weights", "decoder"} & set(vars(fresh))
    assert files(tmp_path / "head") == files(undisturbed / "head")


def test_training_learns_and_leaves_a_head_and_metrics(target: Target, features: str, undisturbed: Path):
    rows = metrics(undisturbed)
    assert rows[0]["step"] == 0
    assert rows[0]["tau"] is not None
    measured = [row for row in rows if row["loss"] is not None]
    assert measured[-1]["loss"] < 0.8 * measured[0]["loss"]
    assert measured[-1]["tau"] is not None
    assert len(measured[-1]["accuracy"]) == len(measured[-1]["loss_by_step"]) == 3
    assert all(row["tokens_per_second"] > 0 and row["lr"] > 0 for row in measured)
    head = Head.load(str(undisturbed / "head"))
    head.check_target(target)
    assert head.metadata.training["steps"] == measured[-1]["step"]
    assert head.metadata.training["tau"] == measured[-1]["tau"]
    assert target.chat.turn_end_ids <= set(head.vocabulary.token_ids.tolist())


def test_tau_is_measured_as_often_as_asked_whatever_is_logged(target: Target, features: str, tmp_path: Path):
    often = OPTIONS.model_copy(update={"evaluate_every": 5, "log_every": 8, "epochs": 1.0})
    made = run(target, features, tmp_path, often)
    rows = [row["step"] for row in metrics(tmp_path)]
    measured = [row["step"] for row in metrics(tmp_path) if row["tau"] is not None]
    assert measured == [*range(0, made.steps, 5), made.steps]
    assert rows == sorted({*measured, *range(0, made.steps, 8)})


@pytest.mark.parametrize("last_step", [1, pytest.param(9, marks=pytest.mark.slow), 5])
def test_a_killed_run_goes_on_and_ends_with_the_same_head(
    target: Target, features: str, undisturbed: Path, tmp_path: Path, last_step: int
):
    run_until_killed(target, features, tmp_path, last_step)
    assert not (tmp_path / "head").exists()
    seen: list[float] = []
    run(target, features, tmp_path, progress=lambda done, total, note: seen.append(done))
    assert seen[0] == (last_step if last_step > 1 else 0)  # step 1 was not saved yet: it starts anew
    assert files(tmp_path / "head") == files(undisturbed / "head")
    assert [row["tokens"] for row in metrics(tmp_path)] == [row["tokens"] for row in metrics(undisturbed)]


def test_the_time_of_all_parts_of_a_run_is_counted(target: Target, features: str, tmp_path: Path):
    run_until_killed(target, features, tmp_path, 5)
    saved = Checkpoint.load(str(tmp_path / "train"))
    assert saved is not None
    replace(saved, seconds=5000.0).save(str(tmp_path / "train"))  # a slow machine's
    assert 5000 < run(target, features, tmp_path).seconds < 10_000
    seconds = [row["seconds"] for row in metrics(tmp_path)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 5000


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_that_diverges_ends_with_an_error_and_leaves_no_head(
    target: Target, features: str, tmp_path: Path, optimizer: str
):
    wild = {"learning_rate": 1e30, "muon_learning_rate": 1e30, "optimizer": optimizer}
    with pytest.raises(DataError, match="isn't finite: training has diverged; lower"):
        run(target, features, tmp_path, OPTIONS.model_copy(update=wild))
    assert not (tmp_path / "head").exists()
    assert all(row["loss"] is None or math.isfinite(row["loss"]) for row in metrics(tmp_path))


def test_sigterm_saves_a_checkpoint_and_ends_the_process(
    target: Target, features: str, undisturbed: Path, tmp_path: Path
):
    options = OPTIONS.model_copy(update={"checkpoint_seconds": 1e9})

    def terminate(done: float, total: float, note: str) -> None:
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        run(target, features, tmp_path, options, terminate)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before
    steps: list[float] = []
    run(target, features, tmp_path, options, lambda done, total, note: steps.append(done))
    assert steps[0] == 4
    assert files(tmp_path / "head") == files(undisturbed / "head")


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", pytest.param("events.out.tfevents.fledge", marks=pytest.mark.slow)]
)
def test_a_run_that_ends_while_it_saves_the_last_step_has_all_its_metrics_afterwards(
    target: Target, features: str, undisturbed: Path, tmp_path: Path, name: str
):
    options = OPTIONS.model_copy(update={"checkpoint_seconds": 1e9})  # saved once, at the end
    blocked = tmp_path / "train" / name
    blocked.mkdir(parents=True)
    with pytest.raises(StorageError, match="can't write"):
        run(target, features, tmp_path, options)
    blocked.rmdir()
    run(target, features, tmp_path, options)
    assert blocked.stat().st_size > 0
    assert [row["step"] for row in metrics(tmp_path)] == [row["step"] for row in metrics(undisturbed)]


def test_a_finished_run_writes_the_same_head_again(target: Target, features: str, undisturbed: Path):
    before = files(undisturbed / "head")
    (undisturbed / "head" / "config.json").unlink()
    run(target, features, undisturbed)
    assert files(undisturbed / "head") == before


def test_other_options_in_the_same_folder_are_refused(target: Target, features: str, undisturbed: Path):
    with pytest.raises(FingerprintError, match=r"train\.learning_rate"):
        run(target, features, undisturbed, OPTIONS.model_copy(update={"learning_rate": 1.0}))


def train_until_killed(folder: Path, features: str, output: str, flushes: int) -> None:
    """Dies at a flush of a file to disk, in the middle of a checkpoint or between two."""
    left = iter(range(flushes))
    flush = os.fsync

    def flush_or_die(handle: int) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(handle)

    os.fsync = flush_or_die
    run(load_tiny_target(folder, "bfloat16"), features, Path(output))


@pytest.mark.parametrize("flushes", [4, 16])
def test_whenever_a_run_is_killed_a_whole_checkpoint_is_there(
    target: Target, features: str, undisturbed: Path, tmp_path: Path, flushes: int
) -> None:
    process = forked(train_until_killed, target.folder, features, str(tmp_path), flushes)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    before = Checkpoint.load(str(tmp_path / "train"))
    assert (before is not None) == (flushes > 4)
    run(target, features, tmp_path)
    assert files(tmp_path / "head") == files(undisturbed / "head")


def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    target: Target, features: str, tmp_path: Path
) -> None:
    (tmp_path / "train" / "checkpoint.safetensors" / "in the way").mkdir(parents=True)
    with pytest.raises(StorageError, match="checkpoint"):
        run(target, features, tmp_path)
    assert not (tmp_path / "head").exists()


def test_large_heads_are_saved_less_often() -> None:
    assert (seconds_between(10**9), seconds_between(10**10)) == (60, 600)


# Rates so high that the head gets worse again.
WORSENING = OPTIONS.model_copy(
    update={
        "epochs": 3.0,
        "muon_learning_rate": 1.0,
        "learning_rate": 0.3,
        "keep": "best",
        "dtype": "float32",
    }
)


def test_the_best_weights_are_kept_over_a_kill(target: Target, features: str, tmp_path: Path) -> None:
    run(target, features, tmp_path / "whole", WORSENING)
    taus = {row["step"]: row["tau"] for row in metrics(tmp_path / "whole") if row["tau"] is not None}
    best = max(taus, key=lambda step: taus[step])
    assert 0 < best < max(taus)
    run_until_killed(target, features, tmp_path / "killed", best + 3, WORSENING)
    summary = run(target, features, tmp_path / "killed", WORSENING)
    assert files(tmp_path / "killed" / "head") == files(tmp_path / "whole" / "head")
    head = Head.load(str(tmp_path / "whole" / "head"))
    assert (head.metadata.training["kept_step"], summary.tau) == (best, taus[best])
    evaluated = evaluate(target, head, features, EvaluateOptions(depth=3), str(tmp_path))
    away = {step: abs(evaluated.overall.tau - tau) for step, tau in taus.items()}
    assert away[best] < away[max(taus)]


@pytest.mark.parametrize("damage", ["cut off", "overwritten"])
def test_a_damaged_checkpoint_is_named(target: Target, features: str, tmp_path: Path, damage: str):
    run_until_killed(target, features, tmp_path, 3)
    path = tmp_path / "train" / "checkpoint.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-50] if damage == "cut off" else whole[:-2000] + bytes(1000) + whole[-1000:])
    with pytest.raises(StorageError, match=r"checkpoint\.safetensors is damaged.*delete"):
        run(target, features, tmp_path)


def test_training_goes_on_from_a_given_head(
    target: Target,
    features: str,
    undisturbed: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    start = Head.load(str(undisturbed / "head"))
    still = {"learning_rate": 1e-9, "muon_learning_rate": 1e-9, "fc_norm": True}
    options = OPTIONS.model_copy(update={"init_head": str(undisturbed / "head"), **still})
    run(target, features, tmp_path, options)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "train.fc_norm=True has no effect: train.init_head is a head with False"
    ]
    again = Head.load(str(tmp_path / "head"))
    assert torch.equal(again.weights.d2t, start.weights.d2t)
    for name, tensor in again.weights.trainable().items():
        torch.testing.assert_close(tensor, start.weights.trainable()[name], rtol=1e-2, atol=1e-4)


def test_a_given_head_gets_another_draft_vocabulary(
    target: Target, features: str, undisturbed: Path, tmp_path: Path
) -> None:
    start = Head.load(str(undisturbed / "head"))
    # Rows that are a linear map of the target's: what the new tokens should get is known.
    turn = torch.randn(2 * [start.config.hidden_size], generator=torch.Generator().manual_seed(0)) / 8
    rows = target.ends.lm_head.float() @ turn
    known = replace(start.weights, lm_head=rows[start.vocabulary.token_ids].bfloat16())
    Head(start.config, known, start.metadata).save(str(tmp_path / "start"))
    still = {"learning_rate": 1e-9, "muon_learning_rate": 1e-9}
    given = {"init_head": str(tmp_path / "start"), "draft_vocab_size": 200, **still}
    run(target, features, tmp_path, OPTIONS.model_copy(update=given))
    again = Head.load(str(tmp_path / "head"))
    assert again.config.draft_vocab_size == 200
    new = ~torch.isin(again.vocabulary.token_ids, start.vocabulary.token_ids)
    assert new.any()
    assert not new.all()
    torch.testing.assert_close(
        again.weights.lm_head.float(), rows[again.vocabulary.token_ids], rtol=0.05, atol=0.02
    )


def test_training_goes_on_with_another_window(
    target: Target, features: str, undisturbed: Path, tmp_path: Path
) -> None:
    start, folder = str(undisturbed / "head"), tmp_path
    for window, sinks in ((12, 4), (None, 4), (0, 0)):
        options = OPTIONS.model_copy(update={"init_head": start, "window": window, "epochs": 0.1})
        folder = folder / "next"
        run(target, features, folder, options)
        start = str(folder / "head")
        config = Head.load(start).config
        assert (config.window, config.sinks) == (12 if window is None else window, sinks)


def test_training_compares_and_goes_on_from_a_head_that_names_fewer_positions(
    target: Target, features: str, undisturbed: Path, tmp_path: Path
):
    """Fewer than the conversations have: EAGLE's own configs say 2,048 whatever the target reaches."""
    head = Head.load(str(undisturbed / "head"))
    short = Head(replace(head.config, max_position_embeddings=-60), head.weights)  # tables go 64 further
    assert compare_heads(target, [head, short], features, EvaluateOptions())[0].high == 0
    short.save(str(tmp_path / "short"))
    run(target, features, tmp_path, OPTIONS.model_copy(update={"init_head": str(tmp_path / "short")}))
    trained = Head.load(str(tmp_path / "head"))
    assert trained.config == head.config
    assert replace(trained.metadata, training={}) == replace(head.metadata, training={})


def test_a_head_for_another_target_is_refused(
    features: str, target: Target, undisturbed: Path, tmp_path: Path
):
    other = load_tiny_target(save_tiny_target(tmp_path / "other", shape=TinyShape(hidden=128)))
    random_head(other).save(str(tmp_path / "foreign"))
    options = OPTIONS.model_copy(update={"init_head": str(tmp_path / "foreign")})
    with pytest.raises(HeadError, match="another target"):
        run(target, features, tmp_path, options)
    head = Head.load(str(undisturbed / "head"))
    with pytest.raises(HeadError, match="another target"):
        evaluate(other, head, features, EvaluateOptions(), str(tmp_path))


def test_evaluation_agrees_with_training_and_is_split_up(
    target: Target, features: str, undisturbed: Path, tmp_path: Path
):
    head = Head.load(str(undisturbed / "head"))
    result = evaluate(target, head, features, EvaluateOptions(depth=3), str(tmp_path))
    assert result.overall.tau == pytest.approx(head.metadata.training["tau"], abs=0.02)
    assert sum(part.rounds for part in result.by_category.values()) == result.overall.rounds
    assert set(result.by_category) == {"code", "story"}
    assert set(result.by_temperature) == {"0.5"}
    assert set(result.by_context) == {"128"}
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert written["overall"]["tau"] == result.overall.tau
    assert len(written["overall"]["by_depth"]) == 3


def test_contexts_go_together_up_to_powers_of_two():
    assert [context_bound(n) for n in (1, 128, 129, 4096, 100_000)] == ["128", "128", "256", "4096", "131072"]


def test_without_training_conversations_there_is_an_error(target: Target, tmp_path: Path):
    held = [replace(c, split="heldout") for c in make_conversations(3)]
    url = write_conversations(tmp_path / "conversations", held)
    extract_features(target, url, FeatureOptions(), str(tmp_path / "features"))
    with pytest.raises(DataError, match="no training conversations"):
        run(target, str(tmp_path / "features"), tmp_path)


def test_the_largest_seed_orders_and_a_larger_one_is_refused(features: str):
    infos = FeatureStore(features).split("train")
    assert epoch_batches(infos, 128, TrainOptions(seed=2**32 - 1).seed, 99)
    with pytest.raises(ValidationError, match="less than 4294967296"):
        TrainOptions(seed=2**32)


def test_every_conversation_is_in_an_epoch_once_and_batches_hold_like_lengths(features: str):
    store = FeatureStore(features)
    infos = store.split("train")
    batches = epoch_batches(infos, 128, seed=0, epoch=0)
    assert batches == epoch_batches(infos, 128, seed=0, epoch=0)
    assert batches != epoch_batches(infos, 128, seed=0, epoch=1)

    def place(info: SampleInfo) -> tuple[int, int]:
        return info.shard, info.index

    assert sorted(place(i) for b in batches for i in b) == sorted(place(i) for i in infos if i.supervised > 1)
    assert all(sum(i.tokens for i in batch) <= 128 for batch in batches)
    spread = [max(i.tokens for i in b) - min(i.tokens for i in b) for b in batches]
    assert sum(spread) / len(spread) < 12


def test_rows_go_to_weights_and_biases_and_a_missing_package_is_one_error(
    target: Target, features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    short = OPTIONS.model_copy(update={"epochs": 0.5, "wandb_project": "heads"})
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "wandb", None)
        with pytest.raises(RecipeError, match=r"fledge\[wandb\]"):
            run(target, features, tmp_path / "without", short)
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(target, features, tmp_path / "with", short)
    (written,) = tmp_path.rglob("*.wandb")
    assert b"loss_by_step/3" in written.read_bytes()


@pytest.fixture
def module_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


OF_STEP = """
import torch

SEEN = []


def of_step(logits, teacher, best, *, step, outside):
    SEEN.append((step, outside.clone(), teacher.sum(-1)))
    return (1 - outside) * -(teacher * logits.log_softmax(-1)).sum(-1) / (1 + step)
"""


def test_a_loss_may_see_the_step_and_what_the_head_can_not_propose(
    target: Target, features: str, module_folder: Path
) -> None:
    (module_folder / "losses_of_step.py").write_text(OF_STEP)
    options = TrainOptions(**OPTIONS.model_dump() | {"loss": "losses_of_step:of_step"})
    run(target, features, module_folder, options)
    seen = sys.modules["losses_of_step"].SEEN
    assert {step for step, _, _ in seen} == {0, 1, 2}
    for step, outside, _ in seen[1:]:  # the first call is the check of the function
        assert ((outside > 0) & (outside < 1)).all(), step
    store = FeatureStore(features)
    whole = (
        torch.cat([store.read(info).hidden for info in store.samples]).float()
        @ target.ends.lm_head.float().t()
    )
    inside = Head.load(str(module_folder / "head")).vocabulary.token_ids
    masses = 1 - whole.softmax(-1)[:, inside].sum(-1)
    for _, outside, _ in seen[1:4]:
        assert all(float((masses - one).abs().min()) < 0.01 for one in outside)


def test_the_documented_loss_of_ones_own_trains(target: Target, features: str, module_folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "extend.md").read_text("utf-8")
    example = page.split("## Add a loss")[1].split("```python\n")[1].split("```")[0]
    (module_folder / "my_losses.py").write_text(example)
    options = TrainOptions(**OPTIONS.model_dump() | {"loss": "my_losses:softened", "epochs": 2.5})
    run(target, features, module_folder, options)
    losses = [row["loss"] for row in metrics(module_folder) if row.get("loss") is not None]
    assert losses[-1] < 0.7 * losses[0]

    logits = torch.randn(20, 30, requires_grad=True)
    target_logits, best = torch.randn(20, 30), torch.randint(-1, 30, (20,))
    counted = best >= 0
    p, q = (target_logits / 2).softmax(-1), (logits / 2).softmax(-1)
    (expected,) = torch.autograd.grad(4 * (p * (p / q).log()).sum(-1)[counted].sum(), logits)
    slope = logits.detach().clone()
    assert options.own_loss is not None
    own_loss_gradient_(slope, target_logits.softmax(-1), best, counted, options.own_loss, measure=False)
    torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("no_such_module:loss", "start in the folder that holds it"),
        ("json:no_such_loss", r"json/__init__\.py\) has no 'no_such_loss'"),
        ("json:__name__", "is not a function"),
    ],
)
def test_a_loss_that_is_not_there_is_refused_before_anything_runs(
    target: Target, named: str, says: str
) -> None:
    with pytest.raises(RecipeError, match=says):
        refuse_untrainable(target, TrainOptions(loss=named))


def test_a_loss_that_cannot_be_trained_on_is_refused_before_its_folder_is_claimed(
    target: Target, features: str, module_folder: Path
) -> None:
    (module_folder / "scalar_loss.py").write_text("def mean(logits, teacher, best): return logits.mean()")
    options = TrainOptions(**OPTIONS.model_dump() | {"loss": "scalar_loss:mean"})
    for refused in (
        lambda: refuse_untrainable(target, options),
        lambda: run(target, features, module_folder, options),
    ):
        with pytest.raises(DataError, match=r"returns .* for 4 rows; it must return one number per row"):
            refused()
    assert not (module_folder / "train").exists()


def test_an_error_inside_the_module_of_a_loss_is_not_taken_for_a_missing_name(
    target: Target, module_folder: Path
) -> None:
    (module_folder / "faulty_loss.py").write_text("import math\nmath.no_such_thing")
    with pytest.raises(AttributeError, match="no_such_thing"):
        refuse_untrainable(target, TrainOptions(loss="faulty_loss:mean"))


def test_a_loss_is_kl_or_names_a_function() -> None:
    with pytest.raises(ValidationError, match="write a function as module:name"):
        TrainOptions(loss="focal")
