"""Heads in GGUF beside llama.cpp itself, built by `make interop`: its converter's file, and what its server accepts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import httpx2
import numpy as np
import pytest

from benchmarks.expanded import expanded
from fledge.bench.workloads import find_workload
from fledge.deploy.exchange import export_head
from fledge.draft.options import HeadOptions
from fledge.engine import Engine, TreeShape
from fledge.heads import Head
from fledge.released import released_head
from fledge.sources.find import DEFAULT_TARGET
from fledge.target import Target
from fledge.train.start import random_head
from tests import interop

pytestmark = pytest.mark.slow
_TOKENS, _PROMPTS, _CHAIN = 64, 12, 4
_NAMES = ("general.name", "general.size_label", "general.tags")  # the converter's, after the folder's name


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(DEFAULT_TARGET)


@pytest.fixture(scope="module")
def folder() -> Path:
    return expanded(DEFAULT_TARGET)


def stored(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = gguf.GGUFReader(file)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return keys, {tensor.name: tensor for tensor in reader.tensors}


@pytest.mark.parametrize("kind", ["bf16", "q8_0"])
@pytest.mark.parametrize("shape", ["released", "random"])
def test_an_exported_head_is_what_its_own_converter_makes(
    target: Target, folder: Path, shape: str, kind: str, tmp_path: Path
) -> None:
    pytest.importorskip("sentencepiece", reason="the converter imports it: pip install sentencepiece")
    sources = interop.llama_cpp_sources()
    head = released_head(target)
    if shape == "random":
        sizes = HeadOptions(intermediate_size=1024, num_heads=12, num_kv_heads=6)
        head = random_head(target, head.vocabulary, sizes=sizes)
    head.save(str(tmp_path / "head"))
    export_head(str(tmp_path / "head"), str(tmp_path / "sglang"), form="sglang", dtype="bfloat16")
    # Of the folder the converter reads the tokenizer; ours comes from the same folder.
    arguments = {"form": "gguf", "target": str(folder), "dtype": kind}
    export_head(str(tmp_path / "sglang"), str(tmp_path / "ours.gguf"), **arguments)  # type: ignore[arg-type]
    command = [sys.executable, str(sources / "convert_hf_to_gguf.py"), str(tmp_path / "sglang")]
    command += [
        "--target-model-dir",
        str(folder),
        "--outtype",
        kind,
        "--outfile",
        str(tmp_path / "theirs.gguf"),
    ]
    environment = os.environ | {"PYTHONPATH": str(sources / "gguf-py")}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    (our_keys, ours), (their_keys, theirs) = stored(tmp_path / "ours.gguf"), stored(tmp_path / "theirs.gguf")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].tensor_type == tensor.tensor_type, name
        assert ours[name].shape.tolist() == tensor.shape.tolist(), name
        assert np.array_equal(ours[name].data, tensor.data), name
    # How text is split, and whether a beginning is added, no draft head needs.
    apart = {*_NAMES, "tokenizer.ggml.pre", "tokenizer.ggml.add_bos_token"}
    assert {k: v for k, v in our_keys.items() if k not in apart} == {
        k: v for k, v in their_keys.items() if k not in apart
    }


def test_its_server_accepts_what_fledge_says(target: Target, tmp_path: Path) -> None:
    file = tmp_path / "head.gguf"
    export_head("released", str(file), form="gguf", target=DEFAULT_TARGET, dtype="q8_0")
    prompts = [prompt.messages for prompt in find_workload("mixed").prompts[:_PROMPTS]]
    texts: list[list[str]] = []
    accepted = drafted = 0
    for head in (None, file):
        draft = ["--spec-draft-n-max", str(_CHAIN)]
        with interop.llama_server(target.place, head, draft) as url:
            body = {"temperature": 0, "max_tokens": _TOKENS, "cache_prompt": False}
            answers = [
                httpx2.post(
                    f"{url}/v1/chat/completions", json=body | {"messages": messages}, timeout=120
                ).json()
                for messages in prompts
            ]
        texts.append([answer["choices"][0]["message"]["content"] for answer in answers])
        accepted = sum(answer["timings"].get("draft_n_accepted", 0) for answer in answers)
        drafted = sum(answer["timings"].get("draft_n", 0) for answer in answers)
    assert texts[0] == texts[1]
    engine = Engine(
        target, Head.load(str(file)), tree=TreeShape(_CHAIN, 1, _CHAIN + 1), lookup=0, max_context=2048
    )
    found = engine.generate([target.chat.prompt_ids(messages) for messages in prompts], max_tokens=_TOKENS)
    rounds = sum(answer.stats.rounds for answer in found)
    ours = sum(len(answer.token_ids) - 1 for answer in found) / rounds
    assert accepted * _CHAIN / drafted + 1 == pytest.approx(ours, rel=0.05)
