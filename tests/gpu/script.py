"""A target of any size in memory, with random weights, whose answers are known; and a head that knows most of them.

The target's attention and MLPs do all of their work and then add nothing to the residual, so that the logits follow
from a row's own token alone: token t is followed by `following[t]`. The margin is wide, so no near-tie can flip.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft import DraftVocabulary, HeadConfig, HeadWeights
from fledge.heads import Head
from fledge.target import DecoderWeights, LayerWeights, Target
from fledge.target.config import DecoderConfig
from fledge.target.decoder import TorchDecoder
from fledge.target.resolve import ResolvedTarget
from tests.tiny import make_tokenizer


class Size(NamedTuple):
    """Of a target."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int


TINY = Size(4, 256, 4, 2, 512, 2048)
MIDDLE = Size(16, 2048, 32, 8, 8192, 8192)
LLAMA_8B = Size(32, 4096, 32, 8, 14336, 128256)
_DRAFT = 32000  # tokens of the draft vocabulary at most
_MARGIN = 3.0  # natural logarithm of the odds that a draw takes the scripted token


class Scripted(NamedTuple):
    """A target, a head and the script."""

    target: Target
    head: Head
    following: list[int]  # by token of the script

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """Different ones of tokens of the script; nothing repeats in them."""
        tokens = len(self.following)
        return [[(131 * number + place) % tokens for place in range(length)] for number in range(count)]

    def answer(self, prompt: list[int], length: int) -> list[int]:
        """The greedy one."""
        found = [prompt[-1]]
        for _ in range(length):
            found.append(self.following[found[-1]])
        return found[1:]


def scripted(
    size: Size, device: torch.device, dtype: torch.dtype, *, rate: float, positions: int = 4096
) -> Scripted:
    """The script goes through at most 8,192 tokens, in a circle. The head knows `rate` of its steps."""
    config = DecoderConfig.from_hf(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": size.hidden,
            "intermediate_size": size.intermediate,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "vocab_size": size.vocabulary,
            "max_position_embeddings": positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "tie_word_embeddings": False,
        }
    )
    folder = Path(tempfile.gettempdir())  # nothing is read there
    target = Target(ResolvedTarget(folder, "scripted", "scripted", config), dtype, device, "torch")
    target.tokenizer = make_tokenizer()
    generator = torch.Generator(device).manual_seed(0)
    tokens = min(size.vocabulary, 8192)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).mul_(scale / math.sqrt(shape[-1]))

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(*shape, device=device, dtype=dtype)

    order = torch.randperm(tokens, generator=generator, device=device)
    following = torch.empty_like(order)
    following[order] = order.roll(-1)
    embedding = torch.randn(size.vocabulary, size.hidden, generator=generator, device=device)
    rows = torch.zeros(size.vocabulary, size.hidden, device=device)
    rows[following] = embedding[:tokens] * (math.log(size.vocabulary) + _MARGIN) / size.hidden
    ones = torch.ones(size.hidden, device=device, dtype=dtype)
    layers = [
        LayerWeights(
            ones,
            random(config.qkv_size, size.hidden).to(dtype),
            None,
            None,
            None,
            zeros(size.hidden, size.heads * config.head_dim),
            ones,
            random(2 * size.intermediate, size.hidden).to(dtype),
            zeros(size.hidden, size.intermediate),
        )
        for _ in range(size.layers)
    ]
    weights = DecoderWeights(embedding.to(dtype), ones, rows.to(dtype), layers)
    target.__dict__["ends"], target.__dict__["decoder"] = weights, TorchDecoder(config, weights)
    return Scripted(target, _head(config, embedding[:tokens], following, rate, generator), following.tolist())


def _head(
    config: DecoderConfig, embedding: Tensor, following: Tensor, rate: float, generator: torch.Generator
) -> Head:
    """Its attention looks at the newest row alone, whose embedding its lm_head knows again."""
    device, size, dim = embedding.device, config.hidden_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    draft = min(_DRAFT, config.vocab_size)
    vocabulary = DraftVocabulary.from_counts(torch.arange(config.vocab_size, 0, -1), draft)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).mul_(scale / math.sqrt(shape[-1]))

    keys = random(kv_heads * dim, size, scale=3.0)
    queries = keys.view(kv_heads, dim, size).repeat_interleave(heads // kv_heads, 0).reshape(-1, size)
    values, out = random(kv_heads * dim, size), random(size, heads * dim, scale=8.0)
    seen = torch.cat((queries, keys, values))
    normed = embedding * torch.rsqrt(embedding.square().mean(-1, keepdim=True) + config.rms_norm_eps)
    mixed = (normed @ values.T).view(-1, kv_heads, dim).repeat_interleave(heads // kv_heads, 1)
    written = mixed.reshape(len(embedding), -1) @ out.T
    written *= torch.rsqrt(written.square().mean(-1, keepdim=True))
    known = len(following)
    guess = following.clone()
    wrong = torch.randperm(known, generator=generator, device=device)[: round((1 - rate) * known)]
    guess[wrong] = following[wrong.roll(1)]
    lm_head = torch.zeros(draft, size, device=device)
    lm_head[guess] = written * (math.log(draft) + _MARGIN) / size
    weights = HeadWeights(
        fc=torch.zeros(size, 3 * size),
        hidden_norm=torch.ones(size),
        input_norm=torch.ones(size),
        qkv=torch.cat((seen, torch.zeros_like(seen)), 1),
        o=out,
        post_norm=torch.ones(size),
        gate_up=random(2 * config.intermediate_size, size),
        down=torch.zeros(size, config.intermediate_size),
        norm=torch.ones(size),
        lm_head=lm_head,
        d2t=vocabulary.d2t,
    )
    return Head(HeadConfig.for_target(config, draft, switches=["norm_output"]), weights)
