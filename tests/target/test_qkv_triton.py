"""Norms, RoPE and the KV write in one Triton kernel against torch, under Triton's interpreter or on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.engine import Engine
from fledge.target import Target, qkv

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytest.importorskip("triton", reason="Triton isn't installed: pip install 'fledge[gpu]'")

from fledge.target import qkv_triton  # noqa: E402

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-2}  # two roundings


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(4, 2, 64), (3, 3, 80), (5, 1, 128)], ids=["64", "80", "128"]
)
@pytest.mark.parametrize("norms", [None, "float32", "same"])
@pytest.mark.parametrize("turned", [True, False])
def test_it_equals_torch(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, norms: str | None, turned: bool
) -> None:
    generator = torch.Generator().manual_seed(size)
    rows, slots = 3, torch.tensor([40, 77, 0], device=DEVICE)

    def numbers(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    product, pool = numbers(rows, heads + 2 * kv_heads, size), numbers(2, 80, kv_heads, size)
    angles = numbers(rows, size // 2, dtype=torch.float32)
    rope = (angles.cos(), angles.sin()) if turned else None
    kind = torch.float32 if norms == "float32" else dtype
    weights = None if norms is None else (numbers(size, dtype=kind) + 1, numbers(size, dtype=kind) + 1)
    expected, result = pool.clone(), pool.clone()
    queries = qkv.rotate_and_store(product, expected[0], expected[1], slots, rope, weights, 1e-5)
    fused = qkv_triton.rotate_and_store(product, result[0], result[1], slots, rope, weights, 1e-5)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(fused, queries, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(result[1], expected[1])  # values are as they were


def test_a_target_decodes_with_it(tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.load(str(tiny_target_folder), dtype="float32", backend="torch")
    prompt = list(range(10, 22))
    expected = Engine(target).generate([prompt], max_tokens=4, ignore_eos=True)[0]
    monkeypatch.setattr(qkv, "runs_triton", lambda _: True)
    answer = Engine(target).generate([prompt], max_tokens=4, ignore_eos=True)[0]
    assert answer.token_ids == expected.token_ids
