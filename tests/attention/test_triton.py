"""The Triton kernel against the reference: under Triton's interpreter, or on a GPU where there is one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fledge.attention import Window, reference_attention
from fledge.draft import DraftVocabulary, runner
from fledge.engine import Engine, TreeShape
from fledge.heads import Head
from fledge.target import Target, decoder
from fledge.target.batch import ForwardBatch
from tests.target.paging import make_batch, scattered_pages

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytest.importorskip("triton", reason="Triton isn't installed: pip install 'fledge[gpu]'")

from fledge.attention import triton as kernels  # noqa: E402

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def random_batch(rng: random.Random, page_size: int, longest: int) -> tuple[ForwardBatch, int]:
    """Requests with 0 to 20 rows after any prefix, causal or with random ancestor masks; and the pool's slots."""
    requests = rng.randint(1, 4)
    rows = [rng.choice([0, 1, 1, 2, 7, 20]) for _ in range(requests)]
    rows[0] = max(rows[0], 1)
    prefix = [rng.choice([0, 1, rng.randrange(longest)]) for _ in range(requests)]
    offset, masks = [0] * requests, None
    if rng.random() < 0.6:
        offset = [rng.randint(0, 44) for _ in range(requests)]
        masks = []
        for number, count in zip(offset, rows, strict=True):
            own = [1 << (number + i) for i in range(count)]
            line = [bit | rng.randrange(bit) for bit in own]
            masks.append([bits - (1 << 64) if bits >= 1 << 63 else bits for bits in line])
    pages = -(-(longest + 64) // page_size)
    table = scattered_pages(requests, pages, rng.randrange(99))
    batch = make_batch([[0] * count for count in rows], table, prefix=prefix, offset=offset, masks=masks)
    return batch, requests * pages * page_size


def compare(seed: int) -> None:
    """One random case."""
    rng = random.Random(seed)
    page_size = rng.choice([1, 2, 4, 16, 32, 64])
    size = rng.choice([64, 80, 96, 128, 256])
    kv_heads, group = rng.choice([(1, 1), (2, 3), (1, 8), (4, 2)])
    dtype = rng.choice([torch.float32, torch.float16, torch.bfloat16])
    batch, slots = random_batch(rng, page_size, rng.choice([40, 700]))
    generator = torch.Generator().manual_seed(seed)
    rows = batch.token_ids.shape[0]
    query = torch.randn(rows, kv_heads * group, size, generator=generator).to(DEVICE, dtype)
    keys, values = (
        torch.randn(slots, kv_heads, size, generator=generator).to(DEVICE, dtype) for _ in range(2)
    )
    batch = ForwardBatch(*(t.to(DEVICE) if isinstance(t, torch.Tensor) else t for t in batch))
    window = Window(rng.choice([0, 0, 64, 65, 90, 600]))
    if rng.random() < 0.4:
        window = Window(rng.choice([1, 5, 20, 70, 600]), rng.choice([0, 4]), of_prefix=True)
    own = torch.randn(kv_heads * group, generator=generator) * 3
    sinks = own.to(DEVICE, dtype) if rng.random() < 0.5 else None
    attention = kernels.TritonAttention(batch, page_size, window)
    result = attention.attend(query, keys, values, sinks)
    expected = reference_attention(query, keys, values, batch, page_size, window, sinks)
    torch.testing.assert_close(result, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 24))]
)
def test_random_cases(seed: int) -> None:
    compare(seed)


@pytest.mark.slow
def test_five_hundred_random_cases() -> None:
    for seed in range(1000, 1500):
        compare(seed)


def test_bit_63_of_a_mask_counts() -> None:
    batch = make_batch([[0]], scattered_pages(1, 5), prefix=[2], offset=[63], masks=[[-(1 << 63) | 0b101]])
    batch = ForwardBatch(*(t.to(DEVICE) if isinstance(t, torch.Tensor) else t for t in batch))
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 64, generator=generator).to(DEVICE)
    keys, values = (torch.randn(80, 2, 64, generator=generator).to(DEVICE) for _ in range(2))
    result = kernels.TritonAttention(batch, 16).attend(query, keys, values)
    torch.testing.assert_close(
        result, reference_attention(query, keys, values, batch, 16), atol=2e-5, rtol=2e-5
    )


def test_sums_of_splits_stay_small_where_contexts_may_be_long() -> None:
    """1,024 rows with 64 heads of 128 in tables for 131,072 tokens: more numbers than 32 bits count, at 512 a split."""
    indices, sums = 131_072, 1024 * 64 * 130
    split = kernels._split_length(indices, sums)
    assert indices // split * sums <= 1 << 26
    assert kernels._split_length(indices, 64 * 130) == 512  # a single row is spread over the GPU
    assert kernels._split_length(100, 1 << 30) == 512


@pytest.mark.parametrize(("most", "splits", "used"), [(1, 1, 1), (4000, 2, 1), (1 << 26, 8, 2)])
def test_splits_behind_what_there_is_cost_nothing(
    monkeypatch: pytest.MonkeyPatch, most: int, splits: int, used: int
) -> None:
    """A table has room for 4,096 tokens, of which 516 are there: the sums of what is empty aren't written, nor read."""
    made: list[torch.Tensor] = []
    new_empty = torch.Tensor.new_empty

    def full_of_nan(self: torch.Tensor, *shape: int, **options: Any) -> torch.Tensor:
        if options.get("dtype") is not torch.float32:  # the interpreter's own
            return new_empty(self, *shape, **options)
        made.append(self.new_full(shape, torch.nan, **options))
        return made[-1]

    monkeypatch.setattr(kernels, "_MAX_SUMS", most)
    monkeypatch.setattr(torch.Tensor, "new_empty", full_of_nan)
    masks = [1 | 1 << i for i in range(7)]
    table = scattered_pages(2, 256)
    batch = make_batch([[0] * 7, [0]], table, prefix=[509, 0], offset=[0, 0], masks=[masks, [1]])
    batch = ForwardBatch(*(t.to(DEVICE) if isinstance(t, torch.Tensor) else t for t in batch))
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(8, 2, 64, generator=generator).to(DEVICE)
    keys, values = (torch.randn(8192, 1, 64, generator=generator).to(DEVICE) for _ in range(2))
    result = kernels.TritonAttention(batch, 16).attend(query, keys, values)
    torch.testing.assert_close(
        result, reference_attention(query, keys, values, batch, 16), atol=2e-5, rtol=2e-5
    )
    (sums,) = made
    assert sums.shape[2] == splits
    assert sums[:, :, used:].isnan().all()


def test_kernels_are_launched_on_their_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, which needn't be the target's."""
    current = ["cuda:0"]
    launched: list[str] = []

    class Launch:
        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda *_, **__: launched.append(current[-1])

    @contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        current.append(str(tensor.device))
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(kernels, "_attend", Launch())
    monkeypatch.setattr(kernels, "_merge", Launch())
    batch = make_batch([[0] * 3], scattered_pages(1, 64), prefix=[600])
    with FakeTensorMode(allow_non_fake_inputs=True):
        query, keys = (torch.empty(3, n, 64, device="cuda:1") for n in (4, 2))
        kernels.TritonAttention(batch, 16).attend(query, keys, keys)
    assert launched == ["cuda:1", "cuda:1"]
    assert current == ["cuda:0"]


def test_a_target_decodes_with_it(tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill, plain decode and trees through the whole decoder: the same answer."""
    target = Target.load(str(tiny_target_folder), dtype="float32", backend="torch")
    head = Head.from_target(target, DraftVocabulary.from_counts(torch.ones(target.config.vocab_size), 300))
    prompt = list(range(10, 22))
    expected = Engine(target).generate([prompt], max_tokens=4, ignore_eos=True)[0]
    for module in (decoder, runner):
        monkeypatch.setattr(module, "paged_attention", kernels.TritonAttention)
    answer = Engine(target, head, tree=TreeShape(2, 2, 5), max_context=32, max_batch=1).generate(
        [prompt], max_tokens=4, ignore_eos=True
    )[0]
    assert answer.token_ids == expected.token_ids
