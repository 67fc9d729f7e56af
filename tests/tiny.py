"""Tiny real targets: random HF checkpoints with a small real tokenizer, the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CwmConfig,
    CwmForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HeliumConfig,
    HeliumForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
VOCAB_SIZE = 512
_SENTENCES = (
    "Why is the sky blue? The sky looks blue because air scatters short waves of light more than long ones.",
    "You are a helpful assistant. Please answer the question in a few short and clear sentences.",
    "Write a function that adds two numbers and returns the sum: def add(a, b): return a + b",
    "There are 12 apples in the basket and 7 on the table. How many apples are there? 12 + 7 = 19.",
    "Once upon a time a small bird left the nest, and it learned how to fly over the river and the wood.",
    "Tell me a story about the sea, the wind and an old ship that never came home again.",
    "The user asks what the assistant knows; system messages say how it should speak with the user.",
    "First heat the water, then add salt and rice, stir it, wait ten minutes and serve it while it is hot.",
)
_CLASSES: dict[str, tuple[Any, Any]] = {
    "CwmForCausalLM": (CwmConfig, CwmForCausalLM),
    "Ernie4_5ForCausalLM": (Ernie4_5Config, Ernie4_5ForCausalLM),
    "Gemma3ForCausalLM": (Gemma3TextConfig, Gemma3ForCausalLM),
    "GptOssForCausalLM": (GptOssConfig, GptOssForCausalLM),
    "GraniteForCausalLM": (GraniteConfig, GraniteForCausalLM),
    "HeliumForCausalLM": (HeliumConfig, HeliumForCausalLM),
    "LlamaForCausalLM": (LlamaConfig, LlamaForCausalLM),
    "Llama4ForCausalLM": (Llama4TextConfig, Llama4ForCausalLM),
    "MistralForCausalLM": (MistralConfig, MistralForCausalLM),
    "MixtralForCausalLM": (MixtralConfig, MixtralForCausalLM),
    "Phi3ForCausalLM": (Phi3Config, Phi3ForCausalLM),
    "Qwen2ForCausalLM": (Qwen2Config, Qwen2ForCausalLM),
    "Qwen3ForCausalLM": (Qwen3Config, Qwen3ForCausalLM),
    "Qwen3MoeForCausalLM": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "SeedOssForCausalLM": (SeedOssConfig, SeedOssForCausalLM),
    "SmolLM3ForCausalLM": (SmolLM3Config, SmolLM3ForCausalLM),
}
# Gemma 3's two kinds of RoPE.
GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},
}
GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
# Multipliers of about Granite 3's size, and no power of two.
GRANITE = {
    "attention_multiplier": 0.11,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 7.0,
}
# What the mixtures of experts say besides a TinyShape: two experts of five or six, where not said otherwise.
EXPERTS: dict[str, dict[str, Any]] = {
    "GptOssForCausalLM": {"num_local_experts": 5, "num_experts_per_tok": 2, "initializer_range": 0.15},
    "Llama4ForCausalLM": {"num_local_experts": 5, "intermediate_size_mlp": 160},
    "MixtralForCausalLM": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}


@dataclass(frozen=True)
class TinyShape:
    """Sizes of a tiny target; the defaults fit the CPU kernels (multiples of 32) and have distinct feature layers."""

    layers: int = 8
    hidden: int = 64
    intermediate: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    positions: int = 2048
    tied: bool = True


def make_tokenizer(
    chat_template: str | None = CHATML, end_of_turn: str = "<|im_end|>"
) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 512 tokens trained on a few sentences."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_SENTENCES, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token=end_of_turn,
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def save_tiny_target(
    folder: Path,
    architecture: str = "LlamaForCausalLM",
    *,
    shape: TinyShape | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    rope_parameters: dict[str, Any] | None = None,
    max_shard_size: str = "5GB",
    chat_template: str | None = CHATML,
    **others: Any,
) -> Path:
    """Write a tiny random checkpoint and its tokenizer into `folder`, and return the folder.

    Weights are drawn larger than HF's default, so that logits differ clearly and greedy text doesn't repeat itself.
    `others`: further fields of the configuration.
    """
    shape = shape or TinyShape()
    config_class, model_class = _CLASSES[architecture]
    tokenizer = make_tokenizer(chat_template)
    config = config_class(
        vocab_size=VOCAB_SIZE,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=shape.tied,
        rope_parameters=rope_parameters or {"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **{"initializer_range": 0.3} | EXPERTS.get(architecture, {}) | others,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
        for (
            name,
            parameter,
        ) in model.named_parameters():  # norms and biases start as constants; make them matter
            if name.endswith(("norm.weight", "layernorm.weight")):
                torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
            elif name.endswith(("bias", ".sinks")):
                torch.nn.init.normal_(parameter, std=1.0 if name.endswith("sinks") else 0.1)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer.save_pretrained(folder)
    return folder
