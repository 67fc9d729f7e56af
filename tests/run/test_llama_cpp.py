"""A target that fledge's decoder doesn't know goes the whole way: llama.cpp answers, gives features, and drafts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
import torch
import yaml
from transformers import Lfm2Config, Lfm2ForCausalLM

from fledge.sources.find import DEFAULT_TARGET
from fledge.target import Target
from tests import interop
from tests.commands.command import Fledge

pytestmark = pytest.mark.slow
_TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
_PLACES = (
    "kitchen", "harbour", "library", "forest", "workshop", "garden", "station", "theatre", "hospital", "bakery",
    "museum", "stable", "cellar", "market", "chapel", "school", "desert", "glacier", "lighthouse", "vineyard",
    "quarry", "bookshop", "laboratory", "greenhouse", "courtroom", "cockpit", "brewery", "observatory", "mine", "zoo",
)  # fmt: skip


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    """A small random LFM2, of convolutions and attention, in 8 bits; its tokens and template are SmolLM2's."""
    known = Target.load(DEFAULT_TARGET)
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=known.config.vocab_size, hidden_size=64, intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=1, eos_token_id=2,
        layer_types=["conv", "full_attention"] * 3, block_auto_adjust_ff_dim=False, tie_word_embeddings=True,
    )  # fmt: skip
    folder, file = tmp_path / "hybrid", tmp_path / "hybrid.gguf"
    Lfm2ForCausalLM(config).float().save_pretrained(folder)
    for name in _TEXTS:
        if (known.folder / name).exists():
            shutil.copy(known.folder / name, folder)
    sources = interop.llama_cpp_sources()
    command = [sys.executable, str(sources / "convert_hf_to_gguf.py"), str(folder), "--outtype", "q8_0"]
    environment = os.environ | {"PYTHONPATH": str(sources / "gguf-py")}
    subprocess.run([*command, "--outfile", str(file)], check=True, capture_output=True, env=environment)
    return file


def test_a_hybrid_target_gets_a_head_that_llama_cpp_drafts_with(
    fledge: Fledge, hybrid: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp", reason="pip install 'fledge[llama-cpp]'")
    lines = [{"prompt": f"Name {n} things that one finds in a {place}."} for n, place in enumerate(_PLACES)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    recipe = {
        "target": {"model": str(hybrid)},
        "prompts": {"sources": [{"path": str(tmp_path / "prompts.jsonl"), "licence": "own"}], "count": 24},
        "respond": {"max_new_tokens": 32, "max_prompt_tokens": 512, "heldout": 0.25},
        "features": {"engine": "llama.cpp"},
        "train": {"epochs": 1, "draft_vocab_size": 512, "ttt_steps": 2},
        "evaluate": {"shapes": []},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    run, head = tmp_path / "run", tmp_path / "head.gguf"
    with interop.llama_server(hybrid, None, []) as url:
        for stage in ("prompts", "respond", "features", "train", "evaluate"):
            fledge(stage, tmp_path / "recipe.yaml", f"respond.server={url}", "--run-dir", run)
    assert json.loads((run / "evaluation.json").read_text())["overall"]["tau"] >= 1.0
    fledge("export", run / "head", head, "--form", "gguf", "--target", hybrid)
    with interop.llama_server(hybrid, head, ["--spec-draft-n-max", "2"]) as url:
        body = {"prompt": "Once", "n_predict": 24, "temperature": 0}
        answer = httpx2.post(f"{url}/completion", json=body, timeout=120).json()
    assert answer["timings"]["draft_n"] > 0
