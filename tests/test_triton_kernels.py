"""What Triton's own compiler makes of the kernels, as they are launched; no GPU is needed for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.triton_compiler import Compiled, compiled

pytest.importorskip("triton", reason="Triton isn't installed: pip install 'fledge[gpu]'")
triton_attention = pytest.importorskip("fledge.attention.triton")

pytestmark = pytest.mark.slow  # Triton compiles for a quarter of a minute

_SMALLEST = 99 << 10  # bytes of shared memory a block may have on an L4, an A10 or an RTX 30 and 40
_PROGRAM = """
import torch
from fledge.attention import Window
from fledge.attention import triton as kernels
from tests.target.paging import make_batch, scattered_pages


def attend(batch, heads, kv_heads, size, dtype, window=0, sinks=False):
    query = torch.zeros(len(batch.token_ids), heads, size, dtype=dtype)
    keys = torch.zeros(64, kv_heads, size, dtype=dtype)
    attention = kernels.TritonAttention(batch, 16, Window(window))
    attention.attend(query, keys, keys, query[0, :, 0].clone() if sinks else None)


def trees(requests, rows, pages):
    masks = [[1 << i for i in range(rows)]] * requests
    table = torch.zeros(requests, pages, dtype=torch.int32)
    return make_batch([[0] * rows] * requests, table, prefix=[pages * 8] * requests, offset=[0] * requests, masks=masks)


launched = [kernels._attend, kernels._merge]
"""
_TRAFFIC = """
from fledge.draft import race_triton
from fledge.target import qkv_triton

for pages in (517, 8197):  # contexts of 8 thousand and 128 thousand tokens
    for requests in (1, 2, 3, 15, 16, 17, 32, 33, 64):
        for batch in (trees(requests, 8, pages), trees(requests, 1, pages)._replace(window_mask=None)):
            attend(batch, 32, 8, 128, torch.bfloat16)
attend(trees(1, 20, 3)._replace(window_mask=None), 32, 8, 128, torch.bfloat16)  # a first prompt, in one split
attend(trees(2, 8, 517), 64, 8, 64, torch.bfloat16, window=128, sinks=True)  # another target
for rows in (1, 2, 16, 33):
    ones, pool = torch.ones(rows), torch.zeros(64, 8, 128, dtype=torch.bfloat16)
    race_triton.winners(torch.zeros(rows, 128256), ones, ones, ones.long())
    race_triton.unit_times(ones.long(), torch.arange(32000))
    product, rope = torch.zeros(rows, 48, 128, dtype=torch.bfloat16), (torch.zeros(rows, 64),) * 2
    qkv_triton.rotate_and_store(product, pool, pool, torch.arange(rows), rope, (pool[0, 0].clone(),) * 2, 1e-5)
launched += [race_triton._winners, race_triton._unit_times, qkv_triton._rotate_and_store]
"""


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    """A server's rounds with 1 to 64 requests on the shapes of an 8B target, and one round of a target like GPT-OSS."""
    return compiled(_PROGRAM + _TRAFFIC, tmp_path_factory.mktemp("triton"))


def test_a_server_compiles_attention_once_for_trees_and_once_for_chains(traffic: list[Compiled]) -> None:
    """A compilation takes seconds, in which all requests wait."""
    assert [variant.kernel for variant in traffic] == [
        "_attend", "_attend", "_attend",  # trees, chains, and the other target
        "_merge", "_merge",
        "_winners", "_unit_times", "_rotate_and_store",
    ]  # fmt: skip


def test_keys_that_all_rows_see_take_few_instructions(traffic: list[Compiled]) -> None:
    """Per 64 keys of 128 and of 64 numbers; with masks it was 1,172, which binds a batch of 64 by issue, not memory."""
    assert all(variant.tensor > 0 for variant in traffic[:3])
    assert [variant.loop for variant in traffic[:2]] == pytest.approx([440, 440], abs=40)
    assert 0 < traffic[2].loop <= 380


def test_a_masked_prefix_loop_is_found_out(tmp_path: Path) -> None:
    """Planted: keys that all rows see are masked, too."""
    source = Path(triton_attention.__file__).read_text("utf-8")
    assert source.count("PAGE, KEYS, False, TREE") == 1
    (tmp_path / "masked.py").write_text(source.replace("KEYS, False, TREE", "KEYS, True, TREE"), "utf-8")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import masked as kernels
attend(trees(2, 8, 517), 32, 8, 128, torch.bfloat16)
launched = [kernels._attend]
"""
    (variant,) = compiled(_PROGRAM + program, tmp_path / "cache")
    assert variant.loop > 600


def test_nothing_spills(traffic: list[Compiled]) -> None:
    assert all(variant.stack == variant.spills == 0 for variant in traffic)


def test_no_pool_is_too_large_to_be_addressed(traffic: list[Compiled]) -> None:
    """A pool of an 8B target has 2 ** 31 keys' numbers at 2.1 million tokens; prompts' queries get there, too."""
    for variant in traffic[:2]:
        assert len(variant.offsets) >= 8  # queries, keys and values in two loops, output, sums
        assert set(variant.offsets) == {"i64"}
    assert traffic[-1].offsets[-1] == "i64"  # where keys and values are written


@pytest.mark.parametrize("capability", [80, 89, 90])
def test_they_fit_smaller_gpus(capability: int, tmp_path: Path) -> None:
    program = """
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    for heads, kv_heads, size in ((32, 8, 128), (9, 3, 64), (32, 32, 96), (8, 4, 256)):
        for batch in (trees(2, 8, 517), trees(2, 8, 517)._replace(window_mask=None)):
            for window, sinks in ((0, False), (512, True)):
                attend(batch, heads, kv_heads, size, dtype, window, sinks)
"""
    variants = compiled(_PROGRAM + program, tmp_path, capability)
    assert len([variant for variant in variants if variant.kernel == "_attend"]) == 3 * 4 * 2 * 2
    assert max(variant.shared for variant in variants) <= _SMALLEST
    # 56 for sm_89; tiles that are too large leave kilobytes
    assert max(variant.stack for variant in variants) <= 256
