"""Tokens chosen without reading all of the lm_head, against those that all logits choose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fledge.target.cpu import NativeDecoder
from fledge.target.weights import DecoderWeights
from tests.native.test_native_decoder import PAGES, make_config, make_weights, one_request

pytestmark = pytest.mark.kernels

ROWS = (1, 3, 8, 16, 17, 40, 300)
VOCABULARY = 523  # 16 panels and a part of one
WIDTH = 96


def decoder_of(lm_head: Tensor, rows: Tensor) -> NativeDecoder:
    """A decoder whose token n goes to the lm_head as row n, as far as bf16 lets it: its layers add nothing."""
    config = replace(make_config(), vocab_size=len(lm_head), hidden_size=lm_head.shape[1])
    weights = make_weights(config)
    layers = [
        replace(layer, o=torch.zeros_like(layer.o), down=torch.zeros_like(layer.down))
        for layer in weights.layers
    ]
    embedding = torch.zeros(len(lm_head), lm_head.shape[1]).bfloat16()
    embedding[: len(rows)] = rows
    return NativeDecoder(
        config, DecoderWeights(embedding, torch.ones_like(weights.norm), lm_head.bfloat16(), layers)
    )


def found(decoder: NativeDecoder, count: int) -> tuple[Tensor, Tensor]:
    """The argmax [count] as it is screened, and from all logits."""
    batch = one_request(list(range(count)), 0)
    kv = decoder.allocate_kv(PAGES)
    logits = decoder.forward(batch, kv, logits="logits").logits
    screened = decoder.forward(batch, kv, logits="argmax").argmax
    assert logits is not None
    assert screened is not None
    high = logits.amax(1, keepdim=True)
    return screened, (logits == high).int().argmax(1)  # the lowest id among equals


def drawn(
    decoder: NativeDecoder,
    temperature: Tensor,
    coins: Tensor,
    allowed: Tensor | None = None,
    filters: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The tokens [count] that a forward draws, and those drawn of its logits; of those `allowed` [count, V] bool.

    `filters` [count, 3]: top-k, top-p, min-p.
    """
    count = len(temperature)
    if filters is None:
        filters = torch.tensor([0.0, 1.0, 0.0]).repeat(count, 1)
    batch = one_request(list(range(count)), 0)
    kv = decoder.allocate_kv(PAGES)
    logits = decoder.forward(batch, kv, logits="logits").logits
    bits = None if allowed is None else packed(allowed)
    given = torch.cat((temperature[:, None], filters), 1)
    screened = decoder.forward_drawn(batch, kv, given, coins, bits, features=False).argmax
    assert logits is not None
    assert screened is not None
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    top_k, top_p, min_p = filters.unbind(1)
    return screened, decoder.sample(logits, temperature, top_k.long(), top_p, min_p, coins)


def packed(allowed: Tensor) -> Tensor:
    """Bits, 32 to a word."""
    room = torch.zeros(len(allowed), -(-allowed.shape[1] // 32) * 32, dtype=torch.bool)
    room[:, : allowed.shape[1]] = allowed
    words = np.packbits(room.numpy(), axis=1, bitorder="little").view(np.int32)
    return torch.from_numpy(words)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("spread", [1.0, 0.01, 0.0])
def test_it_is_the_argmax_of_all_logits(rows: int, spread: float) -> None:
    """Outputs that differ much, by less than 8 bits tell apart, and not at all."""
    lm_head = (random(1, WIDTH, seed=1) + spread * random(VOCABULARY, WIDTH, seed=2)).bfloat16()
    x = random(300, WIDTH, seed=3)
    x[:, 5] *= 30  # an outlier: its group of inputs is known less exactly
    screened, full = found(decoder_of(lm_head, x), rows)
    assert torch.equal(screened, full)


def test_among_equals_the_first_wins() -> None:
    lm_head = random(VOCABULARY, WIDTH, seed=4)
    lm_head[-30:], lm_head[1:9] = 0, 0
    x = random(40, WIDTH, seed=5)
    best = (x.float() @ lm_head.float().T).argmax(1)
    lm_head[-30:] = lm_head[best[:30]]  # again, in other panels
    lm_head[1:9] = lm_head[best[30:38]]
    screened, full = found(decoder_of(lm_head, x), 40)
    assert torch.equal(screened, full)
    assert (screened < VOCABULARY - 30).all()


@pytest.mark.parametrize("inputs", [64, 96, 576])
@pytest.mark.parametrize("rival", [0, 300])
def test_the_bound_holds_where_weights_are_rounded_at_their_worst(inputs: int, rival: int) -> None:
    """All of an output's rounding errors point the row's way: the 8-bit copy underrates it as far as it can."""
    sign = torch.where(random(inputs, seed=6) > 0, 1.0, -1.0)
    lm_head = torch.zeros(VOCABULARY, inputs)
    lm_head[400] = 0.49 * sign  # rounded to 0
    lm_head[rival, 1 : int(0.46 * inputs)] = sign[1 : int(0.46 * inputs)]  # exact, and a little less
    lm_head[:, 0] = 127.0  # so that a step is 1; the row has nothing there
    sign[0] = 0
    screened, full = found(decoder_of(lm_head, sign[None].bfloat16()), 1)
    assert full.item() == 400
    assert screened.item() == 400


@pytest.mark.parametrize("inputs", [64, 96, 576])
@pytest.mark.parametrize("rival", [0, 300])
def test_the_bound_holds_where_a_row_is_rounded_at_its_worst(inputs: int, rival: int) -> None:
    """All of the row's rounding errors point an output's way."""
    x = torch.full((inputs,), 0.49)  # rounded to 0
    x[::32] = 127.0  # so that a step is 1; the output has nothing there
    lm_head = torch.zeros(VOCABULARY, inputs)
    lm_head[400] = torch.where(x < 1, 1.0, 0.0)
    lm_head[rival, 0] = 0.92 * 0.49 * float(lm_head[400].sum()) / 127  # exact, and a little less
    screened, full = found(decoder_of(lm_head, x[None].bfloat16()), 1)
    assert full.item() == 400
    assert screened.item() == 400


def test_a_row_that_is_no_number_gets_token_0_and_the_others_theirs() -> None:
    lm_head, x = random(VOCABULARY, WIDTH, seed=7), random(3, WIDTH, seed=8)
    x[1] = torch.nan
    screened, full = found(decoder_of(lm_head, x), 3)
    assert screened[1] == 0
    assert torch.equal(screened[::2], full[::2])


def test_a_greedy_step_reads_half_of_the_lm_head() -> None:
    inputs = 576
    decoder = decoder_of(random(VOCABULARY, inputs), random(1, inputs))
    smaller = decoder_of(random(VOCABULARY - 320, inputs), random(1, inputs))
    read = decoder.weight_bytes_per_token - smaller.weight_bytes_per_token
    assert 0.53 < read / (320 * inputs * 2) < 0.54


@pytest.mark.parametrize(
    ("vocabulary", "spread"),
    [
        pytest.param(vocabulary, spread, marks=pytest.mark.slow if (large + number) % 2 else ())
        for large, vocabulary in enumerate([VOCABULARY, 20_011])
        for number, spread in enumerate([2.0, 0.3, 0.01, 0.0])
    ],
)
def test_a_draw_is_that_of_all_logits(vocabulary: int, spread: float) -> None:
    """From nearly certain tokens to all alike, and at temperatures that make one of the other."""
    lm_head = (random(1, WIDTH, seed=1) + spread * random(vocabulary, WIDTH, seed=2)).bfloat16() / 3
    decoder = decoder_of(lm_head, random(300, WIDTH, seed=3))
    for seed, temperatures in enumerate(([1.0], [0.0, 0.7, 1.3], [0.01, 5.0, 1e-4, 100.0])):
        for count in (1, 16, 40, 300):
            temperature = torch.tensor(temperatures).repeat(count)[:count]
            coins = torch.randint(
                -(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(seed + 10 * count)
            )
            screened, full = drawn(decoder, temperature, coins)
            assert torch.equal(screened, full), (temperatures, count)


@pytest.mark.parametrize("share", [0.0, 0.002, 0.3, 0.98])
@pytest.mark.parametrize("spread", [2.0, 0.01])
def test_a_row_chooses_among_what_it_may(share: float, spread: float) -> None:
    """From a token or two to nearly all; nothing at all, where all logits are alike, is the first token."""
    lm_head = (random(1, WIDTH, seed=1) + spread * random(VOCABULARY, WIDTH, seed=2)).bfloat16() / 3
    decoder = decoder_of(lm_head, random(300, WIDTH, seed=3))
    for count in (1, 16, 40, 300):
        generator = torch.Generator().manual_seed(count)
        allowed = torch.rand(count, VOCABULARY, generator=generator) < share
        allowed[::3] = True  # rows without a form beside those that have one
        temperature = torch.tensor([0.0, 0.0, 1.0, 0.7]).repeat(count)[:count]
        coins = torch.randint(-(2**62), 2**62, (count,), generator=generator)
        screened, full = drawn(decoder, temperature, coins, allowed)
        assert torch.equal(screened, full)
        some = allowed.any(1)
        assert allowed[some].gather(1, screened[some, None]).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [1, 16, 300])  # a block of rows and part of another
def test_filtered_rows_beside_others(count: int, masked: bool) -> None:
    """Filters change what some rows draw; masks hold for rows of either kind."""
    lm_head = (random(1, WIDTH, seed=1) + random(VOCABULARY, WIDTH, seed=2)).bfloat16() / 3
    decoder = decoder_of(lm_head, random(300, WIDTH, seed=3))
    generator = torch.Generator().manual_seed(count)
    coins = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    temperature = torch.tensor([1.0, 0.7, 1.5, 0.0, 1.0]).repeat(60)[:count]
    filters = torch.tensor([[3, 1, 0], [0, 0.5, 0], [0, 1, 0.2], [0, 1, 0], [0, 1, 0]]).repeat(60, 1)[:count]
    allowed = torch.rand(count, VOCABULARY, generator=generator) < 0.2 if masked else None
    chosen, full = drawn(decoder, temperature, coins, allowed, filters)
    assert torch.equal(chosen, full)
    unfiltered = drawn(decoder, temperature, coins, allowed)[0]
    assert count == 1 or not torch.equal(chosen, unfiltered)
    assert torch.equal(chosen[3::5], unfiltered[3::5])
    assert torch.equal(chosen[4::5], unfiltered[4::5])
    assert allowed is None or allowed.gather(1, chosen[:, None]).all()


def test_draws_follow_the_coin_alone() -> None:
    decoder = decoder_of(random(VOCABULARY, WIDTH, seed=9) / 8, random(1, WIDTH, seed=10).expand(300, -1))
    temperature, coins = torch.ones(300), torch.arange(300) * 2_654_435_761
    screened, _ = drawn(decoder, temperature, coins)
    assert len(screened.unique()) > 50
    assert torch.equal(drawn(decoder, temperature, coins)[0], screened)
