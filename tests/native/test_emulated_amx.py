"""The AMX path on any processor: its tile instructions emulated, its results those of the AVX-512 path."""

from __future__ import annotations

import ctypes

import pytest
import torch

from fledge.native import build
from fledge.target.cpu import NativeDecoder
from tests.native.emulation import emulated_kernels
from tests.native.test_native_decoder import (
    PAGES,
    make_config,
    make_weights,
    one_request,
    random_tree,
    tokens_of,
)

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif("avx512bf16" not in build.available_isas(), reason="the emulation needs AVX-512 bf16"),
]


@pytest.fixture(scope="module")
def emulated() -> ctypes.CDLL:
    return emulated_kernels("emulated_tiles.h", "avx512bf16")  # whose start doesn't ask for AMX's permission


@pytest.mark.parametrize("prefix", [31, 300])
def test_tiles_give_what_the_avx512_path_gives(
    emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, prefix: int
) -> None:
    config = make_config()
    weights = make_weights(config)
    sequence = tokens_of(prefix + 9, config.vocab_size, seed=prefix)
    tokens, masks, chain = random_tree(sequence[prefix:], config.vocab_size, seed=prefix)

    def forwards() -> tuple[torch.Tensor, list[torch.Tensor]]:
        decoder = NativeDecoder(config, weights)
        kv = decoder.allocate_kv(PAGES)
        decoder.forward(one_request(sequence[:prefix], 0), kv, logits="none")
        tree = decoder.forward(one_request(tokens, prefix, masks), kv.clone(), logits="logits").logits
        steps = [
            decoder.forward(one_request([token], prefix + i), kv, logits="logits").logits
            for i, token in enumerate(sequence[prefix:])
        ]
        return tree, steps

    expected, _ = forwards()
    monkeypatch.setattr(build, "_load", lambda isa: (emulated, ""))
    tree, steps = forwards()
    assert (tree - expected).abs().max() < 0.02 * expected.abs().max()
    for depth, node in enumerate(chain):  # and a node's row is a plain step's, bit for bit, here too
        assert torch.equal(tree[node], steps[depth][0]), depth


def test_screening_by_tiles_finds_the_argmax_of_all_logits(
    emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_load", lambda isa: (emulated, ""))
    config = make_config(hidden_size=128)
    decoder = NativeDecoder(config, make_weights(config))
    batch = one_request(tokens_of(40, config.vocab_size, seed=1), 0)
    kv = decoder.allocate_kv(PAGES)
    logits = decoder.forward(batch, kv, logits="logits").logits
    screened = decoder.forward(batch, kv, logits="argmax").argmax
    assert logits is not None
    assert screened is not None
    assert torch.equal(screened, logits.argmax(1))
