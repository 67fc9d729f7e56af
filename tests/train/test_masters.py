"""Masters split over three processes with FSDP2 move as in one process, whatever the shapes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, multiprocessing

from fledge.train.optimizer import Optimizer
from fledge.train.options import TrainOptions
from fledge.train.parallel import Ranks
from fledge.train.sharded import ShardedMasters
from fledge.train.weights import TrainableWeights
from tests.base.forked import preload

# 1,187 numbers: not divisible by three, and no part ends where a weight does.
SHAPES = {"lm_head": (17, 19), "o": (19, 19), "gate_up": (13, 19), "down": (19, 13), "norm": (9,)}
PROCESSES, STEPS = 3, 5
CHECKPOINT = STEPS // 2


def made(options: TrainOptions) -> tuple[TrainableWeights, Optimizer]:
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    weights = TrainableWeights(tensors, torch.float32, torch.device("cpu"))
    return weights, Optimizer(weights, options, STEPS)


def options_of(optimizer: str) -> TrainOptions:
    return TrainOptions(
        optimizer=optimizer, keep="best", weight_decay=0.1, warmup=0.0, lm_head_rate=0.5, clip=3.0
    )  # type: ignore[arg-type]


def share(step: int, rank: int, size: int) -> Tensor:
    """What a process adds to the sum of gradients."""
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * step + rank))


def train_split(rank: int, port: int, optimizer: str, folder: str) -> None:
    """One of three processes; the leading one writes what came out."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(PROCESSES)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = Ranks.from_environment(torch.device("cpu"))
    weights, _ = made(options_of(optimizer))
    weights.distribute(ranks, "fsdp")
    updates = Optimizer(weights, options_of(optimizer), STEPS)
    assert isinstance(weights.masters, ShardedMasters)
    size = weights.grad.numel()
    for part in (weights.masters.shard, updates._first, updates._second, updates.best):
        assert part is not None
        assert part.untyped_storage().nbytes() <= 4 * -(-size // PROCESSES)
    with updates.undone():
        weights.grad.copy_(share(99, rank, size))
        updates.update(0)
    norms = []
    for step in range(STEPS):
        weights.grad.add_(share(step, rank, size))
        norms.append(updates.update(step))
        if step == CHECKPOINT:
            updates.keep()
            state = updates.state()
            if ranks.leads:
                save_file(state, f"{folder}/state.safetensors")
            else:
                assert not sum(tensor.numel() for tensor in state.values())
    found = weights.tensors() | {f"best.{n}": t for n, t in weights.tensors(updates.best).items()}
    found |= {"compute": weights.compute, "norms": torch.tensor(norms)}
    if ranks.leads:
        save_file(found, f"{folder}/found.safetensors")
    ranks.wait()
    dist.destroy_process_group()


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_three_processes_with_a_part_each_make_the_updates_of_one(optimizer: str, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    preload()
    arguments = (port, optimizer, str(tmp_path))
    multiprocessing.start_processes(train_split, arguments, PROCESSES, start_method="forkserver")
    found = load_file(tmp_path / "found.safetensors")

    weights, updates = made(options_of(optimizer))
    size = weights.grad.numel()
    norms = []
    for step in range(STEPS):
        for rank in range(PROCESSES):
            weights.grad.add_(share(step, rank, size))
        norms.append(updates.update(step))
        if step == CHECKPOINT:
            updates.keep()
    assert updates.best is not None
    assert_close(found["norms"], torch.tensor(norms))
    assert_close(found["compute"], weights.compute)
    for name, tensor in weights.tensors().items():
        assert_close(found[name], tensor)
        assert_close(found[f"best.{name}"], weights.tensors(updates.best)[name])

    alone, resumed = made(options_of(optimizer))  # one process goes on from the checkpoint of three
    resumed.load_state(load_file(tmp_path / "state.safetensors"))
    for step in range(CHECKPOINT + 1, STEPS):
        for rank in range(PROCESSES):
            alone.grad.add_(share(step, rank, size))
        resumed.update(step)
    assert_close(alone.compute, weights.compute)
