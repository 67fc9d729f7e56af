"""A random target of any size that walks through its vocabulary, and a head that guesses its steps at a given rate.

    target   every layer adds nothing, so the hidden state is the last token's embedding; lm_head answers `next[token]`
    head     its attention sees the last token alone; lm_head answers `next[token]` for a share `rate` of the tokens,
             and another token's successor for the rest

All weights are dense and are read and multiplied as a trained model's: times are real, acceptance is scripted. With
chains it is rate + rate^2 + ...; no tree helps, as the right token is first or far down.

    python -m tests.bench.scripted FOLDER --hidden 1024 --layers 16 --rate 0.7
    fledge bench --head FOLDER/head --run-dir runs/wide target.model=FOLDER/target
    fledge plan FOLDER/target --bandwidth 50 --tflops 1 --check runs/wide
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from fledge.draft import DraftVocabulary
from fledge.draft.config import HeadConfig
from fledge.draft.weights import HeadWeights
from fledge.heads import Head
from fledge.target import Target
from tests.tiny import SPECIAL_TOKENS, VOCAB_SIZE, make_tokenizer

_LOUD = 8.0  # the head's logit of its first guess: a probability of about 0.85 among 512 tokens
_SHARP = 3.0  # queries and keys so large that a row attends to itself
_OVER_RESIDUAL = 8.0  # what attention writes, against the normed state of the step before


def write_scripted(
    folder: Path,
    *,
    rate: float,
    hidden: int = 64,
    layers: int = 8,
    vocabulary: int = VOCAB_SIZE,
    seed: int = 0,
) -> Path:
    """Write `target/` and `head/` into `folder` (hidden is a multiple of 64)."""
    generator = torch.Generator().manual_seed(seed)
    following = _walk(generator)
    _write_target(folder / "target", following, hidden, layers, vocabulary, generator)
    target = Target.load(str(folder / "target"))
    _scripted_head(target, _guesses(following, rate, generator), generator).save(str(folder / "head"))
    return folder


def _walk(generator: torch.Generator) -> Tensor:
    """next[token] over the tokenizer's ids: one cycle through all but the special ones, which lead into it."""
    order = torch.randperm(VOCAB_SIZE - len(SPECIAL_TOKENS), generator=generator) + len(SPECIAL_TOKENS)
    following = torch.empty(VOCAB_SIZE, dtype=torch.int64)
    following[order] = order.roll(-1)
    following[: len(SPECIAL_TOKENS)] = order[: len(SPECIAL_TOKENS)]
    return following


def _guesses(following: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """`following` with the successors of a share 1 - rate of the tokens handed around among them."""
    order = torch.randperm(VOCAB_SIZE - len(SPECIAL_TOKENS), generator=generator) + len(SPECIAL_TOKENS)
    wrong = order[: round((1 - rate) * len(order))]
    guesses = following.clone()
    guesses[wrong] = following[wrong].roll(1)
    return guesses


def _write_target(
    folder: Path, following: Tensor, hidden: int, layers: int, vocabulary: int, generator: torch.Generator
) -> None:
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        embedding = torch.randn(vocabulary, hidden, generator=generator)
        model.model.embed_tokens.weight.copy_(embedding)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        rows = torch.zeros(vocabulary, hidden)
        cycle = torch.arange(len(SPECIAL_TOKENS), VOCAB_SIZE)
        rows[following[cycle]] = embedding[cycle]
        special = torch.arange(len(SPECIAL_TOKENS))
        rows[following[special]] += embedding[special]  # they share their successor with a token of the cycle
        model.lm_head.weight.copy_(rows)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _scripted_head(target: Target, guesses: Tensor, generator: torch.Generator) -> Head:
    vocabulary = DraftVocabulary.from_counts(torch.arange(target.config.vocab_size, 0, -1), VOCAB_SIZE)
    config = HeadConfig.for_target(target.config, len(vocabulary), norm_output=True)
    size, width = config.hidden_size, config.head_dim

    def random(rows: int, columns: int, scale: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * scale / columns**0.5

    keys = random(config.num_kv_heads * width, size, _SHARP)
    groups = config.num_heads // config.num_kv_heads
    queries = keys.view(config.num_kv_heads, width, size).repeat_interleave(groups, dim=0).reshape(-1, size)
    values = random(config.num_kv_heads * width, size, 1.0)
    o = random(size, config.num_heads * width, _OVER_RESIDUAL)
    seen = torch.cat((queries, keys, values))
    embedded = target.weights.embedding.float()[:VOCAB_SIZE]
    embedded = embedded * torch.rsqrt(embedded.square().mean(-1, keepdim=True) + config.rms_norm_eps)
    read = (embedded @ values.T).view(VOCAB_SIZE, config.num_kv_heads, width)
    written = read.repeat_interleave(groups, dim=1).reshape(VOCAB_SIZE, -1) @ o.T
    written = written * torch.rsqrt(written.square().mean(-1, keepdim=True))  # [VOCAB_SIZE, H], RMS 1
    lm_head = torch.zeros(VOCAB_SIZE, size)
    cycle = torch.arange(len(SPECIAL_TOKENS), VOCAB_SIZE)
    lm_head[guesses[cycle]] = written[cycle] * _LOUD / size
    ones = torch.ones(size)
    weights = HeadWeights(
        fc=torch.zeros(size, 3 * config.target_hidden_size),
        hidden_norm=ones,
        input_norm=ones.clone(),
        qkv=torch.cat((seen, torch.zeros_like(seen)), dim=1),  # columns: embedding, then hidden state
        o=o,
        post_norm=ones.clone(),
        gate_up=random(2 * config.intermediate_size, size, 1.0),
        down=torch.zeros(size, config.intermediate_size),
        norm=ones.clone(),
        lm_head=lm_head,
        d2t=vocabulary.d2t,
    )
    return Head(config, weights)


def main() -> None:
    """Write a target and its head."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--rate", type=float, default=0.7)
    given = parser.parse_args()
    write_scripted(
        given.folder, rate=given.rate, hidden=given.hidden, layers=given.layers, vocabulary=given.vocabulary
    )


if __name__ == "__main__":
    main()
