"""GPT-OSS as OpenAI publishes it: its experts in MXFP4, read as the numbers that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fledge.base.errors import TargetError
from fledge.data.conversations import Conversation
from fledge.engine import Engine, TreeShape
from fledge.features import FeatureOptions, extract_features
from fledge.heads import Head
from fledge.target import Target
from fledge.target.mxfp4 import dequantise
from fledge.train import TrainOptions, train
from tests.features.test_features import write_conversations
from tests.tiny import GPT_OSS_ROPE, TinyShape, save_tiny_target

SHAPE = TinyShape(layers=2, tied=False)


def test_a_byte_is_two_values_the_lower_half_first_times_the_block_s_power_of_two() -> None:
    blocks, scales = torch.zeros(2, 1, 16, dtype=torch.uint8), torch.tensor([[127], [125]], dtype=torch.uint8)
    blocks[:, 0, 0], blocks[:, 0, 1], blocks[:, 0, 15] = 0x7F, 0x21, 0xA0
    values = dequantise(blocks, scales)
    assert values.dtype == torch.bfloat16
    assert values.shape == (2, 32)
    assert values[0, :4].tolist() == [-6.0, 6.0, 0.5, 1.0]
    assert values[0, 30:].tolist() == [0.0, -1.0]
    assert torch.equal(values[1], values[0] / 4)


def test_every_value_is_transformers_own() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 4, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(1, 253, (3, 10, 4), generator=generator, dtype=torch.uint8)
    assert torch.equal(dequantise(blocks, scales), convert_moe_packed_tensors(blocks, scales).mT)


def quantise(folder: Path) -> None:
    """Put random experts in MXFP4 into a tiny GPT-OSS, and the same ones in bfloat16 into a folder beside it."""
    generator = torch.Generator().manual_seed(1)
    file, packed, plain = folder / "model.safetensors", {}, {}
    for name, tensor in load_file(file).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[name] = plain[name] = tensor
            continue
        count, inputs, outputs = tensor.shape
        blocks = torch.randint(
            0, 256, (count, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8
        )
        scales = torch.randint(
            121, 126, (count, outputs, inputs // 32), generator=generator, dtype=torch.uint8
        )
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name] = dequantise(blocks, scales).mT.contiguous()
    (folder / "bf16").mkdir()
    for copied in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / "bf16" / copied).write_text((folder / copied).read_text())
    save_file(plain, folder / "bf16" / "model.safetensors", {"format": "pt"})
    save_file(packed, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}})
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_checkpoint_in_mxfp4_is_the_one_in_bfloat16(dtype: str, tmp_path: Path) -> None:
    quantise(save_tiny_target(tmp_path, "GptOssForCausalLM", shape=SHAPE))

    def experts_of(folder: Path) -> list[Tensor]:
        layers = Target.load(str(folder), dtype=dtype, cache_dir=tmp_path / "cache").weights.layers
        routed = [layer.experts for layer in layers]
        return [tensor for one in routed if one is not None for tensor in (one.gate_up, one.down)]

    ours, theirs = experts_of(tmp_path), experts_of(tmp_path / "bf16")
    assert len(ours) == 4
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_head_is_trained_and_served_on_it(tmp_path: Path) -> None:
    quantise(save_tiny_target(tmp_path, "GptOssForCausalLM", rope_parameters=GPT_OSS_ROPE, sliding_window=64))
    target = Target.load(str(tmp_path), dtype="float32", cache_dir=tmp_path / "cache")
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True}
    prompts = [[(7 * i + j * j) % 500 + 4 for j in range(length)] for i, length in enumerate((3, 40, 64, 90))]
    plain = [answer.token_ids for answer in Engine(target).generate(prompts, **options)]
    conversations = [
        Conversation(
            conversation_id=f"c{i}",
            prompt_id=f"p{i}",
            source="test",
            category="chat",
            token_ids=[*prompt, *answer],
            loss_mask=[False] * len(prompt) + [True] * len(answer),
            turn_starts=[0, len(prompt)],
            temperature=0.0,
            finish_reason="length",
            split="train",
        )
        for i, (prompt, answer) in enumerate(zip(prompts, plain, strict=True))
    ]
    url, features = write_conversations(tmp_path / "conversations", conversations), str(tmp_path / "features")
    extract_features(target, url, FeatureOptions(), features)
    training = TrainOptions(draft_vocab_size=256, ttt_steps=2, epochs=40, batch_tokens=400)
    train(target, features, training, str(tmp_path / "head"), str(tmp_path / "train"))
    engine = Engine(target, Head.load(str(tmp_path / "head")), tree=TreeShape(4, 3, 16))
    drafted = engine.generate(prompts, **options)
    assert [answer.token_ids for answer in drafted] == plain
    assert (
        sum(answer.stats.tau for answer in drafted) / len(prompts) > 1.2
    )  # so that paths of trees are answers


def test_other_bytes_under_the_same_names_are_refused(tmp_path: Path) -> None:
    quantise(save_tiny_target(tmp_path, "GptOssForCausalLM", shape=SHAPE))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.experts.down_proj_scales"
    for other, message in ((tensors[name].float(), "in MXFP4"), (tensors[name][:, :-1], "has shape")):
        save_file(tensors | {name: other.contiguous()}, file, {"format": "pt"})
        with pytest.raises(TargetError, match=message):
            list(Target.load(str(tmp_path), cache_dir=tmp_path / "cache").weights.layers)


def test_sizes_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    quantise(
        save_tiny_target(tmp_path, "GptOssForCausalLM", shape=TinyShape(layers=2, hidden=80, tied=False))
    )
    with pytest.raises(TargetError, match=r"gate_up_proj .* isn't in MXFP4"):
        list(Target.load(str(tmp_path), cache_dir=tmp_path / "cache").weights.layers)
