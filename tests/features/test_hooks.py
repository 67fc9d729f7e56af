"""Features of transformers models by hooks: the layers' outputs and the lm_head's input, for each architecture."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn

from fledge.base.errors import DataError, FingerprintError, TargetError
from fledge.features import (
    FeatureExtractor,
    FeatureOptions,
    FeatureStore,
    HookExtractor,
    extract_features,
    features_fingerprint,
)
from fledge.features.hooks import text_tower
from fledge.heads import Head
from fledge.target import Target
from fledge.train import EvaluateOptions, TrainOptions, evaluate, train
from tests.features.test_features import make_conversations, write_conversations
from tests.heads.tiny_head import load_tiny_target
from tests.sources.tiny_gguf import write_gguf
from tests.tiny import make_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def tiny(name: str) -> Any:
    """A random model of an architecture."""
    t = transformers
    torch.manual_seed(0)
    if name == "llama4":
        return t.Llama4ForCausalLM(
            t.Llama4TextConfig(
                **SIZES,
                **EXPERTS,
                head_dim=8,
                intermediate_size_mlp=48,
                attention_chunk_size=16,
                no_rope_layers=[1, 1, 1, 0],
            )
        )
    if name == "llama4-multimodal":
        text = SIZES | EXPERTS | {"head_dim": 8, "intermediate_size_mlp": 48}
        vision = VISION | {
            "image_size": 28,
            "patch_size": 14,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        }
        return t.Llama4ForConditionalGeneration(t.Llama4Config(text_config=text, vision_config=vision))
    if name == "mixtral":
        return t.MixtralForCausalLM(t.MixtralConfig(**SIZES, **EXPERTS))
    if name == "qwen3":
        return t.Qwen3ForCausalLM(t.Qwen3Config(**SIZES, head_dim=8))
    if name == "qwen3-gelu":
        return t.Qwen3ForCausalLM(t.Qwen3Config(**SIZES, head_dim=8, hidden_act="gelu"))
    if name == "qwen3-moe":
        return t.Qwen3MoeForCausalLM(
            t.Qwen3MoeConfig(
                **SIZES, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
            )
        )
    if name == "gemma3":
        return t.Gemma3ForCausalLM(t.Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=8))
    if name == "gemma3-multimodal":
        text = SIZES | {"head_dim": 8, "sliding_window": 8}
        vision = VISION | {"image_size": 28, "patch_size": 14}
        return t.Gemma3ForConditionalGeneration(t.Gemma3Config(text_config=text, vision_config=vision))
    if name == "phi":
        return t.PhiForCausalLM(t.PhiConfig(**SIZES))
    if name == "phi3":
        return t.Phi3ForCausalLM(t.Phi3Config(**SIZES))
    if name == "starcoder2":
        return t.Starcoder2ForCausalLM(t.Starcoder2Config(**SIZES))
    if name == "qwen3.5":
        linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        linear |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
        return t.Qwen3_5ForCausalLM(t.Qwen3_5TextConfig(**SIZES, head_dim=8, **linear))
    assert name == "gpt-oss"
    return t.GptOssForCausalLM(t.GptOssConfig(**SIZES, **EXPERTS, head_dim=8, sliding_window=8))


NAMES = ["llama4", "llama4-multimodal", "mixtral", "qwen3", "qwen3-moe"]
NAMES += ["gemma3", "gemma3-multimodal", "phi", "phi3", "gpt-oss"]


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_features_are_what_the_model_computes(name: str):
    model = tiny(name).eval()
    conversations = make_conversations(7)
    extractor = HookExtractor(model, batch_tokens=64)
    samples = extractor.extract(conversations)
    assert not any(layer._forward_hooks for layer in text_tower(model).layers)
    assert extractor.feature_layers == (0, 1, 3)
    assert extractor.hidden_size == 32
    # transformers 5.24's multimodal Llama 4 can't be called without images (its outputs lack `image_outputs`).
    reference = model.language_model if name == "llama4-multimodal" else model
    for sample, c in zip(samples, conversations, strict=True):
        ids = torch.tensor([c.token_ids])
        out = reference(input_ids=ids, output_hidden_states=True, use_cache=False)
        lm_head = model.get_output_embeddings()
        states = out.hidden_states  # embeddings, then each layer's output; the last one is normed
        # One conversation at a time without padding, against batches with padding: equal but for rounding to bf16.
        for part, layer in zip(
            sample.features.float().split(32, dim=1), extractor.feature_layers[:2], strict=False
        ):
            torch.testing.assert_close(part, states[layer + 1][0], rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(sample.hidden.float(), states[-1][0], rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(lm_head(states[-1][0]), out.logits[0], rtol=1e-3, atol=1e-3)
        generated_next = [*c.loss_mask[1:], False]
        best = out.logits[0].argmax(-1).tolist()
        assert sample.argmax.tolist() == [b if g else -1 for b, g in zip(best, generated_next, strict=True)]
        assert sample.token_ids.tolist() == c.token_ids


@torch.no_grad()
def test_hooks_and_the_lean_decoder_agree(tiny_target_folder: Path):
    target = load_tiny_target(tiny_target_folder)
    conversations = make_conversations(9)
    extractor = HookExtractor.load(str(tiny_target_folder), dtype="float32")
    assert extractor.feature_layers == target.config.feature_layers
    for one, other in zip(
        extractor.extract(conversations), FeatureExtractor(target, 256).extract(conversations), strict=True
    ):
        torch.testing.assert_close(one.features.float(), other.features.float(), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(one.hidden.float(), other.hidden.float(), rtol=2e-2, atol=2e-2)
        assert torch.equal(one.argmax, other.argmax)


def test_what_a_quantised_target_needs_installed_is_named(tmp_path: Path, tiny_target_folder: Path):
    folder = Path(shutil.copytree(tiny_target_folder, tmp_path / "target"))
    config = json.loads((folder / "config.json").read_text())
    quantised = config | {"quantization_config": {"quant_method": "aqlm"}}  # its package isn't among ours
    (folder / "config.json").write_text(json.dumps(quantised))
    with pytest.raises(TargetError, match=r"can't load .*aqlm"):
        HookExtractor.load(str(folder))


@torch.no_grad()
def test_weights_that_are_unpacked_at_the_first_forward_are_unpacked():
    conversations = make_conversations(2)
    expected = HookExtractor(tiny("qwen3")).extract(conversations)
    packed = tiny("qwen3")
    packed.config.quantization_config = {"quant_method": "compressed-tensors"}
    weight = packed.model.layers[0].mlp.up_proj.weight
    weight.div_(2)

    def unpack(*_: Any) -> None:
        weight.mul_(2)
        hook.remove()

    hook = packed.register_forward_pre_hook(unpack)
    found = HookExtractor(packed).extract(conversations)
    assert all(torch.equal(a.features, b.features) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("fault", ["a missing weight", "scales of an unknown quantisation"])
def test_weights_that_transformers_would_make_up_or_misread_are_refused(
    fault: str, tiny_target_folder: Path, tmp_path: Path
):
    folder = Path(shutil.copytree(tiny_target_folder, tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    if fault == "a missing weight":
        del tensors[name]
    else:
        tensors |= {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale": torch.ones(())}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(TargetError, match=name):
        HookExtractor.load(str(folder))


def test_what_does_not_work_is_explained(tiny_target_folder: Path, tmp_path: Path):
    with pytest.raises(TargetError, match="can't load"):
        HookExtractor.load(str(tmp_path / "nothing"))
    with pytest.raises(
        TargetError, match="can't load"
    ):  # whatever transformers raises: here an AssertionError
        HookExtractor.load(str(tiny_target_folder), device_map="cuda:17")
    with pytest.raises(TargetError, match="no list of decoder layers"):
        text_tower(nn.Linear(2, 2))
    too_long = make_conversations(1)
    too_long[0].token_ids.extend([1] * 128)
    with pytest.raises(DataError, match="takes 1 to 128"):
        HookExtractor(tiny("mixtral")).extract(too_long)
    foreign = make_conversations(1)
    foreign[0].token_ids[3] = 2**20
    with pytest.raises(DataError, match="beyond the target's vocabulary"):
        HookExtractor(tiny("mixtral")).extract(foreign)


def test_a_target_spread_over_devices_fills_the_run_s_store(tiny_target_folder: Path, tmp_path: Path):
    target = load_tiny_target(tiny_target_folder)
    url, folder = (
        write_conversations(tmp_path / "conversations", make_conversations(9)),
        tmp_path / "features",
    )
    options = FeatureOptions(device_map="auto")
    extractor = HookExtractor.for_target(target, options)
    made = extract_features(target, url, options, str(folder), extractor=extractor)
    assert made.store.records == len(FeatureStore(str(folder)).samples) == 9
    assert extract_features(target, url, options, str(folder), extractor=extractor) == made
    assert not {"weights", "decoder"} & set(vars(target))  # the target itself isn't loaded beside it
    features_fingerprint(target, url, options).claim(str(folder))
    with pytest.raises(FingerprintError, match="by"):
        features_fingerprint(target, url, FeatureOptions()).claim(str(folder))


@pytest.mark.parametrize("name", ["gemma3", "gemma3-multimodal", "gpt-oss", "qwen3-gelu"])
def test_a_target_the_decoder_cannot_run_gets_a_head(name: str, tmp_path: Path):
    folder = tmp_path / "target"
    tiny(name).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    target = Target.load(str(folder))
    with pytest.raises(TargetError, match="decoder can't run"):
        target.decoder  # noqa: B018
    url, features = (
        write_conversations(tmp_path / "conversations", make_conversations(24)),
        str(tmp_path / "features"),
    )
    options = FeatureOptions(device_map="cpu")
    extract_features(target, url, options, features, extractor=HookExtractor.for_target(target, options))
    store = FeatureStore(features)
    sample = store.read(store.samples[0])
    told = (sample.hidden.float() @ target.ends.lm_head.float().t()).argmax(-1)
    generated = sample.argmax >= 0
    assert (told == sample.argmax)[generated].float().mean() > 0.9  # near-ties in bf16
    options = TrainOptions(draft_vocab_size=64, ttt_steps=2, epochs=1, batch_tokens=128)
    train(target, features, options, str(tmp_path / "head"), str(tmp_path / "train"))
    judged = evaluate(
        target, Head.load(str(tmp_path / "head")), features, EvaluateOptions(shapes=()), str(tmp_path)
    )
    assert judged.overall.tau >= 1


@pytest.mark.parametrize("name", ["gemma3", "qwen3", "qwen3.5"])
def test_the_last_norm_of_a_target_is_what_its_model_makes_of_the_weight(name: str, tmp_path: Path):
    model = tiny(name)
    nn.init.normal_(text_tower(model).norm.weight, std=0.1)
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    ends = Target.load(str(tmp_path), dtype="float32").ends
    torch.testing.assert_close(nn.functional.rms_norm(x, (32,), ends.norm, 1e-6), text_tower(model).norm(x))


@pytest.mark.parametrize(
    ("name", "reason"), [("phi", "has lm_head.bias"), ("starcoder2", "has model.norm.bias")]
)
def test_a_target_without_the_ends_that_a_head_needs_is_refused_at_once(
    name: str, reason: str, tmp_path: Path
):
    tiny(name).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(TargetError, match=reason):
        Target.load(str(tmp_path))


def test_a_spread_target_feeds_no_training():
    with pytest.raises(ValidationError, match="device_map needs feed=offline"):
        FeatureOptions(device_map="auto", feed="online")


def test_a_gguf_file_is_refused_since_transformers_drops_what_it_does_not_know(
    tiny_target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    target = load_tiny_target(write_gguf(tiny_target_folder, tmp_path / "tiny.gguf"))
    with pytest.raises(TargetError, match=r"tiny\.gguf is a GGUF file.*safetensors checkpoint"):
        HookExtractor.for_target(target, FeatureOptions())
