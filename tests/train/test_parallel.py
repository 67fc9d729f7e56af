"""Two processes train the head that one trains; killed, they go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from fledge.features import SampleInfo
from fledge.heads import Head
from fledge.train import TrainOptions, train
from fledge.train.parallel import Ranks
from tests.base.forked import forked
from tests.heads.tiny_head import load_tiny_target
from tests.train.test_trainer import OPTIONS, features, files, run, target

__all__ = ["features", "target"]  # fixtures

SMALL = OPTIONS.model_copy(update={"epochs": 2.0, "dtype": "float32", "optimizer": "adamw", "log_every": 1})


def train_one(
    folder: Path, features: str, output: str, options: TrainOptions, stop: int, by: signal.Signals
) -> None:
    """What each of the processes does."""

    def progress(done: float, total: float, note: str) -> None:
        if done == stop:
            os.kill(os.getpid(), by)

    there = load_tiny_target(folder, "bfloat16")
    train(there, features, options, f"{output}/head", f"{output}/train", progress)


def train_together(
    folder: Path,
    features: str,
    output: str,
    *,
    stop: int = -1,
    by: signal.Signals = signal.SIGTERM,
    options: TrainOptions = SMALL,
    environment: Mapping[str, str] | None = None,
) -> list[int | None]:
    """Train in two processes; with `stop` the leading one gets the signal after that step. Exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(environment or {})}
    arguments = (folder, features, output, options, stop, by)
    processes = [
        forked(train_one, *arguments, environment={**shared, "RANK": str(rank)}) for rank in range(2)
    ]
    for process in processes:
        process.join(500)
    codes = [process.exitcode for process in processes]
    assert by != signal.SIGTERM or set(codes) <= {0, 143}
    return codes


def test_shares_are_disjoint_whole_and_even():
    infos = [SampleInfo(0, i, "train", "", 0.0, 20 + i, 10) for i in range(30)]
    for size in (2, 3, 8):
        shares = [Ranks(rank, size).share(infos) for rank in range(size)]
        assert [info for share in shares for info in share] == infos
        tokens = [sum(info.tokens for info in share) for share in shares]
        assert max(tokens) - min(tokens) <= 2 * 50
    one = infos[:1]
    assert sorted(len(Ranks(rank, 2).share(one)) for rank in range(2)) == [0, 1]
    assert Ranks().share(infos) == infos


@pytest.mark.parametrize(("parallel", "optimizer"), [("ddp", "adamw"), ("fsdp", "muon")])
def test_two_processes_give_the_losses_of_one(
    target, features: str, tiny_target_folder: Path, tmp_path: Path, parallel: str, optimizer: str
):
    """Within 1e-4 in float32: sums are taken in another order, and nothing else differs."""
    options = SMALL.model_copy(update={"parallel": parallel, "optimizer": optimizer})
    run(target, features, tmp_path / "one", options)
    assert train_together(tiny_target_folder, features, str(tmp_path / "two"), options=options) == [0, 0]
    rows = [
        [json.loads(line) for line in (tmp_path / name / "train" / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert len(rows[0]) == len(rows[1]) > 8
    for one, two in zip(*rows, strict=True):
        assert one["step"] == two["step"]
        if one["loss"] is not None:
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
            assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-3)
            assert two["accuracy"] == pytest.approx(one["accuracy"], abs=0.02)
        if one["tau"] is not None:
            assert two["tau"] == pytest.approx(one["tau"], rel=0.02)
    heads = [Head.load(str(tmp_path / name / "head")).weights.trainable() for name in ("one", "two")]
    for name, tensor in heads[0].items():
        assert (tensor - heads[1][name]).norm() < 1e-2 * tensor.norm(), name


@pytest.mark.slow
@pytest.mark.distributed
def test_split_training_goes_on_after_a_kill_bit_for_bit_and_in_one_process_too(
    target, features: str, tiny_target_folder: Path, tmp_path: Path
):
    split = SMALL.model_copy(update={"parallel": "fsdp", "optimizer": "muon", "dtype": "bfloat16"})
    assert train_together(tiny_target_folder, features, f"{tmp_path}/whole", options=split) == [0, 0]
    for stop in (3, 6):
        codes = train_together(tiny_target_folder, features, f"{tmp_path}/parts", stop=stop, options=split)
        assert codes == [143, 143]
    shutil.copytree(tmp_path / "parts", tmp_path / "alone")
    assert train_together(tiny_target_folder, features, f"{tmp_path}/parts", options=split) == [0, 0]
    assert files(tmp_path / "parts" / "head") == files(tmp_path / "whole" / "head")
    seen: list[float] = []
    run(
        target,
        features,
        tmp_path / "alone",
        SMALL.model_copy(update={"optimizer": "muon", "dtype": "bfloat16"}),
        lambda done, total, note: seen.append(done),
    )
    assert seen[0] == 7
    heads = [Head.load(str(tmp_path / name / "head")).weights.trainable() for name in ("whole", "alone")]
    for name, tensor in heads[0].items():
        assert (tensor - heads[1][name]).norm() < 2e-2 * tensor.norm(), name


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_killed_twice_on_cloud_storage_end_with_the_head_of_one_go_on_a_disk(
    features: str, tiny_target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    from fledge.base import storage
    from tests.base.object_stores import running_gcs

    assert train_together(tiny_target_folder, features, str(tmp_path)) == [0, 0]
    with running_gcs() as proxy:
        environment = proxy.environment
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        remote = f"{proxy.bucket}/features"
        for place in storage.list_files(features):
            storage.write_atomic(storage.join(remote, Path(place).name), Path(place).read_bytes())
        proxy.plan = lambda number: "503" if number % 40 == 0 else None
        output = f"{proxy.bucket}/run"
        there = {"output": output, "environment": environment}
        codes = train_together(tiny_target_folder, remote, **there, stop=2)
        assert codes == [143, 143]
        codes = train_together(tiny_target_folder, remote, **there, stop=5, by=signal.SIGKILL)
        assert codes[0] == -signal.SIGKILL
        assert codes[1] > 0  # it can't go on alone
        assert train_together(tiny_target_folder, remote, output, environment=environment) == [0, 0]
        found = storage.read_bytes(f"{output}/head/model.safetensors")
        assert proxy.faults
    assert found == (tmp_path / "head" / "model.safetensors").read_bytes()
