"""The native decoder against the plain torch one, and its row invariance."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain as joined
from typing import Any

import pytest
import torch
from torch import Tensor

from fledge.base.memory import resident_memory
from fledge.engine.sampling import RowSampling, coins, sample, seed_key
from fledge.native import ops
from fledge.target.batch import ForwardBatch, LogitsMode
from fledge.target.config import DecoderConfig
from fledge.target.cpu import NativeDecoder, native_available
from fledge.target.decoder import TorchDecoder
from fledge.target.matrix import Matrix, Quantised
from fledge.target.weights import DecoderWeights, LayerWeights

pytestmark = pytest.mark.kernels

PAGES = 48
WINDOWED = {"window": 100, "windowed_layers": (0, 2)}
GEMMA3 = {
    "qk_norm": True,
    "out_norms": True,
    "activation": "gelu",
    "embedding_scale": 9.8,
    "window": 290,
    "windowed_layers": (0, 1),
    "window_rope_theta": 1e3,
}


def make_config(**changes: object) -> DecoderConfig:
    small = DecoderConfig(
        architecture="LlamaForCausalLM", num_layers=3, hidden_size=96, intermediate_size=160, num_heads=6,
        num_kv_heads=2, head_dim=64, vocab_size=523, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None,
        max_position_embeddings=2048, own_positions=2048, tie_word_embeddings=False, qkv_bias=False, qk_norm=False,
    )  # fmt: skip
    return replace(small, **changes)  # type: ignore[arg-type]


def make_weights(config: DecoderConfig, seed: int = 0) -> DecoderWeights:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 0.06) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).bfloat16()

    def norm(width: int) -> Tensor:
        return (1 + 0.1 * torch.randn(width, generator=generator)).bfloat16()

    h, inner, d = config.hidden_size, config.intermediate_size, config.head_dim
    layers = [
        LayerWeights(
            input_norm=norm(h),
            qkv=random(config.qkv_size, h),
            qkv_bias=random(config.qkv_size) if config.qkv_bias else None,
            q_norm=norm(d) if config.qk_norm else None,
            k_norm=norm(d) if config.qk_norm else None,
            o=random(h, config.num_heads * d),
            post_norm=norm(h),
            gate_up=random(2 * inner, h),
            down=random(h, inner),
            attention_out_norm=norm(h) if config.out_norms else None,
            mlp_out_norm=norm(h) if config.out_norms else None,
        )
        for _ in range(config.num_layers)
    ]
    return DecoderWeights(
        embedding=random(config.vocab_size, h, scale=1.0),
        layers=layers,
        norm=norm(h),
        lm_head=random(config.vocab_size, h),
    )


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def one_request(
    tokens: list[int], prefix: int, masks: list[int] | None = None, page_size: int = 32
) -> ForwardBatch:
    """Rows of one request; with masks, a tree whose depths follow from them."""
    depth = [bin(m).count("1") - 1 for m in masks] if masks else list(range(len(tokens)))
    pages = torch.arange(PAGES * 32 // page_size, dtype=torch.int32)[None]
    signed = None if masks is None else torch.tensor([m - (1 << 64) if m >> 63 else m for m in masks])
    return ForwardBatch(
        int32(tokens), int32([prefix + d for d in depth]), int32([0, len(tokens)]), int32([prefix]), int32([0]),
        pages, signed,
    )  # fmt: skip


def tokens_of(count: int, vocab: int, seed: int) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def random_tree(path: list[int], vocab: int, seed: int) -> tuple[list[int], list[int], list[int]]:
    """A tree that holds `path` among random branches: tokens, masks, and where the path's nodes are."""
    generator = torch.Generator().manual_seed(seed)
    tokens, masks, chain = [path[0]], [1], [0]
    for token in path[1:]:
        for _ in range(int(torch.randint(0, 4, (1,), generator=generator))):
            parent = int(torch.randint(0, len(tokens), (1,), generator=generator))
            masks.append(masks[parent] | 1 << len(tokens))
            tokens.append(int(torch.randint(0, vocab, (1,), generator=generator)))
        masks.append(masks[chain[-1]] | 1 << len(tokens))
        chain.append(len(tokens))
        tokens.append(token)
    return tokens, masks, chain


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qkv_bias": True},
        {"qk_norm": True},
        {"num_heads": 4, "num_kv_heads": 4, "head_dim": 96},
        {"num_heads": 8, "num_kv_heads": 1, "head_dim": 32, "hidden_size": 64},
        {"num_heads": 4, "num_kv_heads": 2, "head_dim": 256},
        {"rope_free_layers": (1,)},
        WINDOWED,
        GEMMA3,
    ],
)
@pytest.mark.parametrize("length", [1, 15, 33, 300, 700])
def test_logits_features_and_hidden_agree_with_torch_in_float32(
    changes: dict[str, object], length: int
) -> None:
    config = make_config(**changes)
    weights = make_weights(config)
    wide = DecoderWeights(
        weights.embedding.float(),
        weights.norm.float(),
        weights.lm_head.float(),
        [
            LayerWeights(*(None if t is None else t.float() for t in vars(layer).values()))
            for layer in weights.layers
        ],
    )  # type: ignore[arg-type]
    native, reference = NativeDecoder(config, weights), TorchDecoder(config, wide, page_size=16)
    tokens = tokens_of(length, config.vocab_size, seed=length)
    got = native.forward(
        one_request(tokens, 0), native.allocate_kv(PAGES), logits="logits", features=True, hidden=True
    )
    want = reference.forward(
        one_request(tokens, 0, page_size=16), reference.allocate_kv(PAGES * 2), logits="logits", features=True,
        hidden=True,
    )  # fmt: skip
    for name in ("logits", "features", "hidden"):
        a, b = getattr(got, name).float(), getattr(want, name)
        assert (a - b).abs().max() < 0.03 * b.abs().max(), name
    again = native.forward(one_request(tokens, 0), native.allocate_kv(PAGES), logits="argmax")
    assert torch.equal(again.argmax, got.logits.argmax(-1))


@pytest.mark.parametrize("form", ["q8_0", "q4_0"])
def test_a_quantised_target_is_its_dequantised_one_but_for_rounded_activations(form: Quantised) -> None:
    config = make_config()
    weights = make_weights(config)

    def as_stored(w: Any, matrices: tuple[str, ...]) -> tuple[Any, Any]:
        stored = {name: Matrix.of(getattr(w, name)).quantised(form) for name in matrices}
        wide = {name: matrix.dequantise(torch.float32) for name, matrix in stored.items()}
        others = {name: t.float() for name, t in vars(w).items() if isinstance(t, Tensor)}
        return replace(w, **stored), replace(w, **(others | wide))

    layers = [as_stored(layer, ("qkv", "o", "gate_up", "down")) for layer in weights.layers]
    stored, wide = as_stored(weights, ("embedding", "lm_head"))
    native = NativeDecoder(config, replace(stored, layers=[kept for kept, _ in layers]))
    reference = TorchDecoder(config, replace(wide, layers=[tensors for _, tensors in layers]), page_size=16)
    tokens = tokens_of(70, config.vocab_size, seed=1)
    kv = native.allocate_kv(PAGES)
    got = native.forward(one_request(tokens, 0), kv, logits="logits").logits
    want = reference.forward(
        one_request(tokens, 0, page_size=16), reference.allocate_kv(PAGES * 2), logits="logits"
    ).logits
    assert got is not None
    assert want is not None
    assert (got - want).norm() < 0.02 * want.norm()
    chosen = native.forward(one_request(tokens, 0), kv, logits="argmax").argmax
    assert chosen is not None
    assert torch.equal(chosen, got.argmax(1))


@pytest.mark.parametrize("changes", [{}, WINDOWED, GEMMA3])
@pytest.mark.parametrize("prefix", [1, 30, 31, 32, 95, 200, 250, 255, 256, 287, 300, 349, 508, 700])
def test_tree_nodes_get_bit_for_bit_what_plain_decode_gives(prefix: int, changes: dict[str, object]) -> None:
    config = make_config(**changes)
    native = NativeDecoder(config, make_weights(config))
    sequence = tokens_of(prefix + 9, config.vocab_size, seed=prefix)
    kv = native.allocate_kv(PAGES)
    native.forward(one_request(sequence[:prefix], 0), kv, logits="none")
    tree_kv = kv.clone()
    plain = [
        native.forward(one_request([token], prefix + i), kv, logits="logits", features=True)
        for i, token in enumerate(sequence[prefix:])
    ]
    tokens, masks, chain = random_tree(sequence[prefix:], config.vocab_size, seed=prefix)
    tree = native.forward(one_request(tokens, prefix, masks), tree_kv, logits="logits", features=True)
    for depth, node in enumerate(chain):
        assert torch.equal(tree.logits[node], plain[depth].logits[0]), depth
        assert torch.equal(tree.features[node], plain[depth].features[0]), depth

    # The accepted path moved into place leaves the pool as plain decode leaves it.
    native.move_kv(
        tree_kv, torch.tensor([prefix + n for n in chain]), torch.arange(prefix, prefix + len(chain))
    )
    end = prefix + len(chain)
    after = [native.forward(one_request([7], end), pool, logits="logits").logits for pool in (kv, tree_kv)]
    assert torch.equal(*after)


@pytest.mark.parametrize("changes", [{}, WINDOWED, GEMMA3])
def test_a_row_does_not_depend_on_the_rows_beside_it(changes: dict[str, object]) -> None:
    config = make_config(**changes)
    native = NativeDecoder(config, make_weights(config))
    lengths = [5, 40, 300, 64, 1, 17, 90]
    pages = torch.arange(len(lengths) * 12, dtype=torch.int32).view(len(lengths), 12)
    kv = native.allocate_kv(pages.numel())
    rows = [tokens_of(n, config.vocab_size, seed=n) for n in lengths]
    starts = [0]
    for n in lengths:
        starts.append(starts[-1] + n)
    together = native.forward(
        ForwardBatch(
            int32(list(joined(*rows))), int32([i for n in lengths for i in range(n)]), int32(starts),
            int32([0] * len(lengths)), int32([0] * len(lengths)), pages,
        ),
        kv, logits="logits",
    )  # fmt: skip
    for i, row in enumerate(rows):
        alone = native.forward(one_request(row, 0), native.allocate_kv(PAGES), logits="logits")
        assert torch.equal(alone.logits, together.logits[starts[i] : starts[i + 1]])


def test_window_offset_continues_a_window_written_earlier() -> None:
    """A draft step sees the rows that earlier steps of its round wrote."""
    config = make_config()
    native = NativeDecoder(config, make_weights(config))
    prefix = 50
    sequence = tokens_of(prefix + 3, config.vocab_size, seed=3)
    kv = native.allocate_kv(PAGES)
    native.forward(one_request(sequence[:prefix], 0), kv, logits="none")
    whole = native.forward(
        one_request(sequence[prefix:], prefix, [0b1, 0b11, 0b111]), kv.clone(), logits="logits"
    )
    native.forward(one_request(sequence[prefix : prefix + 1], prefix, [0b1]), kv, logits="none")
    rest = one_request(sequence[prefix + 1 :], prefix, [0b11, 0b111])._replace(window_offset=int32([1]))
    assert torch.equal(native.forward(rest, kv, logits="logits").logits, whole.logits[1:])


@pytest.mark.parametrize("wanted", [[3, 49], [49], [49, 3], list(range(50))])
@pytest.mark.parametrize("mode", ["logits", "argmax", "none"])
@pytest.mark.parametrize("layers", [3, 7])  # the last one's output is a feature; is none
def test_the_last_layer_is_finished_for_the_wanted_rows_alone_and_nothing_else_changes(
    wanted: list[int], mode: LogitsMode, layers: int
) -> None:
    config = make_config(num_layers=layers)
    native = NativeDecoder(config, make_weights(config))
    batch = one_request(tokens_of(50, config.vocab_size, seed=1), 0)
    kv, whole_kv = native.allocate_kv(PAGES), native.allocate_kv(PAGES)
    whole = native.forward(batch, whole_kv, logits="logits", features=True)
    some = native.forward(batch._replace(logit_rows=int32(wanted)), kv, logits=mode, features=True)
    assert torch.equal(kv, whole_kv)
    assert torch.equal(some.features, whole.features)
    if mode == "logits":
        assert torch.equal(some.logits, whole.logits[wanted])
    if mode == "argmax":
        assert some.argmax.tolist() == whole.logits.argmax(-1)[wanted].tolist()
    normed = native.forward(batch._replace(logit_rows=int32(wanted)), kv, logits="logits", hidden=True)
    assert torch.equal(normed.logits, whole.logits[wanted])
    assert normed.hidden.shape == (50, config.hidden_size)


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"hidden_size": 100}, "hidden_size"), ({"num_heads": 40, "num_kv_heads": 2}, "query heads")],
)
def test_a_shape_the_kernels_cannot_take_is_named(changes: dict[str, object], part: str) -> None:
    assert part in native_available(make_config(**changes), torch.bfloat16, "cpu")
    assert "float32" in native_available(make_config(), torch.float32, "cpu")


def sampled_exactly(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    p = torch.softmax(logits.double() / temperature, -1)
    if top_k:
        p[p < p.topk(top_k).values[-1]] = 0
    if top_p < 1:
        ordered, order = (p / p.sum()).sort(descending=True)
        p[order[ordered.cumsum(0) - ordered >= top_p]] = 0
    p[p < min_p * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 0.9, 0.0),
        (3.0, 0, 0.99, 0.0),  # hundreds of tokens, most of them far below the likeliest
        (1.3, 20, 1.0, 0.0),
        (1.0, 30, 0.8, 0.0),
        (0.5, 400, 0.999, 0.0),
        (1.0, 0, 1.0, 0.1),
        (1.0, 30, 0.95, 0.2),
    ],
)
def test_sampler_draws_from_the_exact_distribution(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """And draws what the reference draws, but for a rare tie within rounding."""
    count, vocab = 20001, 523
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(5)) * 2
    tossed = coins(torch.tensor(seed_key(7)), torch.arange(count))
    full = [torch.full((count,), v) for v in (temperature, float(top_k), top_p, min_p)]
    many = logits.expand(count, -1).contiguous()
    drawn = ops.sample(many, full[0], full[1].long(), full[2], full[3], tossed)
    share = torch.bincount(drawn, minlength=vocab).double() / count
    exact = sampled_exactly(logits, temperature, top_k, top_p, min_p)
    assert ((share - exact).abs() < 5 * (exact / count).sqrt() + 1e-3 / count).all()
    assert (share[exact == 0] == 0).all()
    rows = slice(5001)  # the reference takes its time
    full = [option[rows] for option in full]
    setting = RowSampling(
        full[0], full[1].long(), full[2], full[3], tossed[rows], None, top_k > 0 or top_p < 1
    )
    assert (drawn[rows] != sample(many[rows], setting, tossed[rows])).sum() <= 1


@pytest.mark.parametrize(
    "temperature", [1.0, *(pytest.param(other, marks=pytest.mark.slow) for other in (0.2, 5.0))]
)
def test_sampler_draws_what_the_reference_draws_from_a_large_vocabulary(temperature: float) -> None:
    logits = torch.randn(200, 50_001, generator=torch.Generator().manual_seed(8)) * 3
    count = len(logits)
    tossed = coins(torch.tensor([seed_key(9)] * count), torch.arange(count))
    full = [torch.full((count,), v) for v in (temperature, 0.0, 1.0, 0.0)]
    drawn = ops.sample(logits, full[0], full[1].long(), full[2], full[3], tossed)
    setting = RowSampling(full[0], full[1].long(), full[2], full[3], tossed, None, truncates=False)
    assert (drawn != sample(logits, setting, tossed)).sum() <= 1
    assert drawn.unique().numel() > 3


def test_sampler_at_temperature_zero_is_argmax() -> None:
    logits = torch.randn(7, 101, generator=torch.Generator().manual_seed(1))
    zero = torch.zeros(7)
    assert torch.equal(ops.sample(logits, zero, zero.long(), zero + 1, zero, zero.long()), logits.argmax(-1))


def test_a_kv_pool_is_zero_and_lies_where_huge_pages_begin() -> None:
    pool = ops.pages_of_zeros(2, 300, 3, 2, 32 * 64)
    assert pool.shape == (2, 300, 3, 2, 2048)
    assert pool.dtype == torch.bfloat16
    assert pool.data_ptr() % (2 << 20) == 0
    assert not pool.any()
    pool.fill_(1)
    assert pool.float().sum() == pool.numel()


def test_numbers_too_small_to_be_normal_are_the_callers_business_again_after_a_call() -> None:
    tiny = torch.full((64,), 1e-39)
    ops.sample(
        torch.randn(3, 101),
        torch.ones(3),
        *(torch.zeros(3).long(), torch.ones(3), torch.zeros(3), torch.arange(3)),
    )
    assert (tiny * 0.5 > 0).all()


def test_a_kv_pool_takes_memory_only_as_it_is_used() -> None:
    before = resident_memory()
    pool = ops.pages_of_zeros(64, 1 << 20)  # 128 MiB
    assert resident_memory() - before < 16 << 20
    pool[:32] = 1
    assert resident_memory() - before > 48 << 20
    assert int(pool.count_nonzero()) == 32 << 20
