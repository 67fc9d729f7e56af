"""Layers with a window, without RoPE or with multipliers: a tree's answers are plain decode's, also beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from fledge.draft import DraftVocabulary
from fledge.engine import Engine, TreeShape
from fledge.heads import Head
from fledge.target import Target
from fledge.train.start import random_head
from tests.tiny import GEMMA3_ROPE, GPT_OSS_ROPE, GRANITE, VOCAB_SIZE, TinyShape, save_tiny_target

TARGETS: dict[str, dict[str, Any]] = {
    "CwmForCausalLM": {"sliding_window": 64},
    "GptOssForCausalLM": {
        "rope_parameters": GPT_OSS_ROPE,
        "sliding_window": 64,
        "shape": TinyShape(tied=False),
    },
    "Gemma3ForCausalLM": {"rope_parameters": GEMMA3_ROPE, "sliding_window": 64},
    "GraniteForCausalLM": GRANITE | {"shape": TinyShape(hidden=128), "seed": 1},
    "HeliumForCausalLM": {"shape": TinyShape(hidden=128)},
    "MistralForCausalLM": {"sliding_window": 100},
    "SeedOssForCausalLM": {},
    "SmolLM3ForCausalLM": {},
}
NO_KERNELS = ("GptOssForCausalLM", "native")  # it has experts
LENGTHS = (5, 63, 64, 300)  # of the prompts


def ids_of(count: int) -> list[int]:
    return torch.randint(10, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(count)).tolist()


@dataclass(frozen=True)
class Served:
    """A target with a head of its own, and plain decode's answers."""

    target: Target
    head: Head
    prompts: list[list[int]]
    expected: list[list[int]]


OPTIONS: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    architecture, backend = request.param
    folder = save_tiny_target(tmp_path_factory.mktemp("other"), architecture, **TARGETS[architecture])
    dtype = "float32" if backend == "torch" else "bfloat16"  # which has near-ties on torch
    target = Target.load(str(folder), backend=backend, dtype=dtype)
    vocabulary = DraftVocabulary.from_counts(torch.ones(VOCAB_SIZE), 256)
    if target.config.experts:  # its last layer is no head's
        head = random_head(target, vocabulary, keep_output=True)
    else:
        head = Head.from_target(target, vocabulary)
    prompts = [ids_of(length) for length in LENGTHS]
    plain = Engine(target).generate(prompts, **OPTIONS)
    expected = [answer.token_ids for answer in plain]
    if backend == "torch":
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for prompt, answer in zip(prompts, expected, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *answer]])).logits[0]
            assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == list(answer)
    return Served(target, head, prompts, expected)


def cases() -> Iterator[Any]:
    """All targets with a branching tree on the kernels, there the first with all trees; in torch those with windows.

    The others are slow.
    """
    for name in TARGETS:
        for backend in ("native", "torch"):
            for tree in (None, TreeShape(4, 3, 16), TreeShape(5, 1, 6)):
                often = tree is not None and tree.topk > 1 and "sliding_window" in TARGETS[name]
                if backend == "native":
                    often = name == next(iter(TARGETS)) or (tree is not None and tree.topk > 1)
                if (name, backend) != NO_KERNELS:
                    marks = () if often else pytest.mark.slow
                    yield pytest.param((name, backend), tree, id=f"{name}-{backend}-{tree}", marks=marks)


@pytest.mark.parametrize(("served", "tree"), cases(), indirect=["served"], scope="module")
def test_answers_are_plain_decode_s(served: Served, tree: TreeShape | None) -> None:
    engine = Engine(served.target, served.head, tree=tree)
    for _ in range(2):  # the second time with prefix hits
        answers = engine.generate(served.prompts, **OPTIONS)
        assert [answer.token_ids for answer in answers] == served.expected
