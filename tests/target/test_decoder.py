"""The torch decoder against transformers, and its three ways through a text against each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fledge.doctor.family import compare
from fledge.target import DecoderConfig, TorchDecoder
from tests.target.loading import weights_of
from tests.target.paging import logits_of, make_batch, scattered_pages
from tests.tiny import GEMMA3_ROPE, GPT_OSS_ROPE, GRANITE, VOCAB_SIZE, TinyShape, save_tiny_target

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama_tied": ("LlamaForCausalLM", TinyShape(), None),
    "llama_untied_no_gqa": ("LlamaForCausalLM", TinyShape(kv_heads=4, tied=False), None),
    "llama_llama3_rope": ("LlamaForCausalLM", TinyShape(), LLAMA3_ROPE),
    "mistral_odd_head_dim": ("MistralForCausalLM", TinyShape(heads=6, head_dim=10, tied=False), None),
    "qwen2_bias": ("Qwen2ForCausalLM", TinyShape(head_dim=16), None),
    "qwen3_norms": ("Qwen3ForCausalLM", TinyShape(tied=False), None),
    "phi3_fused": ("Phi3ForCausalLM", TinyShape(head_dim=16, tied=False), None),
    "gpt_oss": ("GptOssForCausalLM", TinyShape(tied=False), None),
    "gpt_oss_odd_sizes": (
        "GptOssForCausalLM",
        TinyShape(heads=6, head_dim=10, intermediate=52),
        GPT_OSS_ROPE,
    ),
    "mixtral": ("MixtralForCausalLM", TinyShape(tied=False), None),
    "qwen3_moe": ("Qwen3MoeForCausalLM", TinyShape(tied=False), None),
    "llama4": ("Llama4ForCausalLM", TinyShape(tied=False), LLAMA3_ROPE),
    "smollm3": ("SmolLM3ForCausalLM", TinyShape(head_dim=16), None),
    "helium": ("HeliumForCausalLM", TinyShape(head_dim=16, tied=False), None),
    "ernie": ("Ernie4_5ForCausalLM", TinyShape(), LLAMA3_ROPE),
    "seed_oss": ("SeedOssForCausalLM", TinyShape(tied=False), None),
}
# Of 150 tokens, windowed layers see 64.
WINDOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "cwm": ("CwmForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "gemma3": ("Gemma3ForCausalLM", {"rope_parameters": GEMMA3_ROPE, "query_pre_attn_scalar": 20}),
    "gemma3, a window in every layer": ("Gemma3ForCausalLM", {"sliding_window_pattern": 100}),
    "gpt_oss": ("GptOssForCausalLM", {"rope_parameters": GPT_OSS_ROPE}),
    "gpt_oss, without biases and within its bounds": (
        "GptOssForCausalLM",
        {"attention_bias": False, "swiglu_limit": 1.5, "swiglu_alpha": 1.0},
    ),
    "mistral": ("MistralForCausalLM", {}),
    "mixtral": ("MixtralForCausalLM", {}),
    "phi3": ("Phi3ForCausalLM", {"shape": TinyShape(head_dim=16)}),
    "qwen2": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "max_window_layers": 3, "shape": TinyShape(head_dim=16)},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"use_sliding_window": True, "max_window_layers": 5}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {"use_sliding_window": True}),
}
BIASES = {
    "of no projection": ("SeedOssForCausalLM", {"attention_bias": False}),
    "of attention's output": ("SeedOssForCausalLM", {"attention_out_bias": True}),
    "of turned rows": ("HeliumForCausalLM", {"attention_bias": True, "shape": TinyShape(head_dim=16)}),
}
OTHER_EXPERTS = {
    "softmax over all experts": ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}),
    "some layers dense": ("Qwen3MoeForCausalLM", {"mlp_only_layers": [1, 7], "norm_topk_prob": True}),
    "every other layer": ("Qwen3MoeForCausalLM", {"decoder_sparse_step": 2}),
    "dense layers of another size": ("Llama4ForCausalLM", {"interleave_moe_layer_step": 2}),
    "no layer at all": ("Llama4ForCausalLM", {"moe_layers": []}),
    "no norms, two layers with RoPE": (
        "Llama4ForCausalLM",
        {"use_qk_norm": False, "no_rope_layers": [1, 0, 0, 0, 0, 0, 0, 1]},
    ),
}


def load_decoder(folder: Path, dtype: torch.dtype = torch.float32) -> TorchDecoder:
    config = DecoderConfig.from_folder(folder)
    return TorchDecoder(config, weights_of(folder, dtype, config))


def random_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def decoder(tiny_target_folder: Path) -> TorchDecoder:
    return load_decoder(tiny_target_folder)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_features_agree_with_transformers(case: str, tmp_path: Path) -> None:
    architecture, shape, rope = CASES[case]
    save_tiny_target(tmp_path, architecture, shape=shape, rope_parameters=rope, dtype=torch.float32)
    assert_agrees_with_transformers(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_multipliers_agree_with_transformers(tied: bool, tmp_path: Path) -> None:
    shape = TinyShape(tied=tied, head_dim=16)
    save_tiny_target(tmp_path, "GraniteForCausalLM", shape=shape, dtype=torch.float32, **GRANITE)
    assert_agrees_with_transformers(tmp_path)


@pytest.mark.parametrize("case", WINDOWED)
def test_windowed_layers_agree_with_transformers(case: str, tmp_path: Path) -> None:
    architecture, others = WINDOWED[case]
    save_tiny_target(tmp_path, architecture, dtype=torch.float32, sliding_window=64, **others)
    assert_agrees_with_transformers(tmp_path)


@pytest.mark.parametrize("case", BIASES)
def test_biases_agree_with_transformers(case: str, tmp_path: Path) -> None:
    architecture, others = BIASES[case]
    save_tiny_target(tmp_path, architecture, dtype=torch.float32, **others)
    assert_agrees_with_transformers(tmp_path)


@pytest.mark.parametrize("case", OTHER_EXPERTS)
def test_every_form_of_experts_agrees_with_transformers(case: str, tmp_path: Path) -> None:
    architecture, others = OTHER_EXPERTS[case]
    save_tiny_target(tmp_path, architecture, shape=TinyShape(tied=False), dtype=torch.float32, **others)
    assert_agrees_with_transformers(tmp_path)


def test_the_text_model_of_a_multimodal_checkpoint_is_read(tmp_path: Path) -> None:
    text = save_tiny_target(tmp_path / "text", "Llama4ForCausalLM", shape=TinyShape(tied=False))
    both = tmp_path / "both"
    shutil.copytree(text, both)
    weights = load_file(text / "model.safetensors")
    renamed = {f"language_model.{name}": tensor for name, tensor in weights.items()}
    save_file(
        renamed | {"vision_model.class_embedding": torch.zeros(4)},
        both / "model.safetensors",
        {"format": "pt"},
    )
    config = json.loads((text / "config.json").read_text())
    multimodal = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": config,
    }
    (both / "config.json").write_text(json.dumps(multimodal))
    ids, pages = random_ids(40), scattered_pages(1, 3)
    first, second = (
        logits_of(decoder, make_batch([ids], pages), decoder.allocate_kv(3))
        for decoder in map(load_decoder, (text, both))
    )
    assert torch.equal(first, second)


TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
SEEING = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "depth": 1,
}
SEEING |= {
    "image_size": 28,
    "patch_size": 14,
    "num_heads": 2,
    "embed_dim": 32,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [0],
}


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "text", "vision"),
    [
        ("Mistral3", {}, {}),
        ("Qwen2VL", MROPE, {"hidden_size": 64}),
        ("Qwen2_5_VL", MROPE, {}),
        (
            "Qwen3VL",
            MROPE | {"head_dim": 16},
            {"deepstack_visual_indexes": [0], "num_position_embeddings": 4},
        ),
        ("Gemma3", {"head_dim": 32, "sliding_window": 64}, {}),
    ],
)
def test_the_text_models_of_multimodal_targets_agree_with_transformers(
    name: str, text: dict[str, Any], vision: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    kind = getattr(transformers, f"{name}Config")
    config = kind(text_config=TEXT | text, vision_config=SEEING | vision, tie_word_embeddings=tied)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    model.save_pretrained(tmp_path)
    assert_agrees_with_transformers(tmp_path, model)


def assert_agrees_with_transformers(folder: Path, model: Any = None) -> None:
    """As `fledge doctor --family` compares them, which builds small models of its own."""
    if model is None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert [check for check in compare(folder, model) if check.state != "ok"] == []


@pytest.mark.parametrize("case", ["llama_tied", "qwen2_bias", "qwen3_norms"])
def test_bf16_rounds_no_worse_than_transformers(case: str, tmp_path: Path) -> None:
    architecture, shape, rope = CASES[case]
    assert_rounds_no_worse(save_tiny_target(tmp_path, architecture, shape=shape, rope_parameters=rope))


@pytest.mark.parametrize("seed", range(3))
def test_bf16_rounds_no_worse_with_multipliers_in_the_weights(seed: int, tmp_path: Path) -> None:
    shape = TinyShape(head_dim=16)
    assert_rounds_no_worse(
        save_tiny_target(tmp_path, "GraniteForCausalLM", shape=shape, seed=seed, **GRANITE)
    )


def assert_rounds_no_worse(folder: Path) -> None:
    ids = random_ids(200, seed=3)
    exact, theirs = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        .eval()(torch.tensor([ids]))
        .logits[0]
        .detach()
        for dtype in (torch.float32, torch.bfloat16)
    )
    decoder = load_decoder(folder, torch.bfloat16)
    ours = logits_of(decoder, make_batch([ids], scattered_pages(1, 13)), decoder.allocate_kv(13))
    assert (ours - exact).abs().mean() <= 1.1 * (theirs.float() - exact).abs().mean()


def test_token_by_token_equals_prefill(decoder: TorchDecoder) -> None:
    texts = [random_ids(23, seed=1), random_ids(17, seed=2)]
    table = scattered_pages(2, 4)
    whole = logits_of(decoder, make_batch(texts, table), decoder.allocate_kv(8))
    kv = decoder.allocate_kv(8)
    logits_of(decoder, make_batch([texts[0][:6]], table[:1]), kv)  # one request starts ahead of the other
    steps = []
    for step in range(17):
        batch = make_batch([[texts[0][6 + step]], [texts[1][step]]], table, prefix=[6 + step, step])
        steps.append(logits_of(decoder, batch, kv))
    torch.testing.assert_close(torch.stack([s[0] for s in steps]), whole[6:23], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.stack([s[1] for s in steps]), whole[23:], rtol=1e-4, atol=1e-4)


def test_prefill_in_chunks_equals_one_prefill(decoder: TorchDecoder) -> None:
    ids, table = random_ids(50), scattered_pages(1, 4)
    whole = logits_of(decoder, make_batch([ids], table), decoder.allocate_kv(4))
    kv = decoder.allocate_kv(4)
    parts = [
        logits_of(decoder, make_batch([ids[a:b]], table, prefix=[a]), kv)
        for a, b in [(0, 20), (20, 21), (21, 50)]
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "GptOssForCausalLM"])
def tree_decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchDecoder:
    folder = tmp_path_factory.mktemp("tree")
    others = {"sliding_window": 64} if request.param.startswith("Gpt") else {}
    return load_decoder(save_tiny_target(folder, request.param, **others))


def test_every_path_of_a_verified_tree_equals_its_plain_text(tree_decoder: TorchDecoder) -> None:
    decoder, parents = tree_decoder, [-1, 0, 0, 1, 1, 3]
    prompts, nodes = (
        [random_ids(81, seed=4), random_ids(9, seed=5)],
        [random_ids(6, seed=6), random_ids(6, seed=7)],
    )
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    masks = [sum(1 << j for j in path) for path in paths]
    table, kv = scattered_pages(2, 6), decoder.allocate_kv(12)
    logits_of(decoder, make_batch(prompts, table), kv)
    lengths = [len(p) for p in prompts]
    tree = make_batch(
        nodes,
        table,
        prefix=lengths,
        positions=[[length + len(path) - 1 for path in paths] for length in lengths],
        masks=[masks, masks],
    )
    verified = logits_of(decoder, tree, kv).view(2, 6, -1)
    for request in range(2):
        for node, path in enumerate(paths):
            text = prompts[request] + [nodes[request][j] for j in path]
            batch = make_batch([text], scattered_pages(1, 6), logit_rows=[len(text) - 1])
            plain = logits_of(decoder, batch, decoder.allocate_kv(6))[0]
            torch.testing.assert_close(verified[request, node], plain, rtol=1e-4, atol=1e-4)


def test_decoding_on_from_moved_kv_equals_plain_text(decoder: TorchDecoder) -> None:
    prompt, nodes, path = random_ids(13), random_ids(5, seed=9), [0, 2, 4]  # node 2 below 0, 4 below 2
    table, kv = scattered_pages(1, 3), decoder.allocate_kv(3)
    logits_of(decoder, make_batch([prompt], table), kv)
    masks, depths = [[0b1, 0b11, 0b101, 0b1011, 0b10101]], [0, 1, 1, 2, 2]
    tree = make_batch([nodes], table, prefix=[13], positions=[[13 + d for d in depths]], masks=masks)
    logits_of(decoder, tree, kv)

    def slots(indices: list[int]) -> torch.Tensor:
        size = decoder.page_size
        return torch.tensor([int(table[0, i // size]) * size + i % size for i in indices])

    decoder.move_kv(kv, slots([13 + node for node in path]), slots([13, 14, 15]))
    after = logits_of(decoder, make_batch([[7]], table, prefix=[16]), kv)
    text = [*prompt, *(nodes[j] for j in path), 7]
    plain = logits_of(decoder, make_batch([text], table, logit_rows=[16]), decoder.allocate_kv(3))
    torch.testing.assert_close(after, plain, rtol=1e-4, atol=1e-4)


def test_moving_kv_reads_all_sources_before_it_writes(decoder: TorchDecoder) -> None:
    kv = torch.randn(decoder.allocate_kv(1).shape, generator=torch.Generator().manual_seed(0))
    before = kv.clone()
    decoder.move_kv(kv, torch.tensor([3, 4, 5]), torch.tensor([4, 5, 3]))
    torch.testing.assert_close(kv[:, :, [4, 5, 3]], before[:, :, [3, 4, 5]])
    torch.testing.assert_close(kv[:, :, [0, 1, 2, 6]], before[:, :, [0, 1, 2, 6]])


def test_only_what_was_asked_for_is_returned(decoder: TorchDecoder) -> None:
    batch = make_batch([random_ids(8), random_ids(3)], scattered_pages(2, 1), logit_rows=[7, 10])
    kv = decoder.allocate_kv(2)
    out = decoder.forward(batch, kv, logits="none", hidden=True)
    assert (out.logits, out.argmax, out.features) == (None, None, None)
    assert out.hidden is not None
    assert out.hidden.shape == (11, 64)
    logits = decoder.forward(batch, kv, logits="logits").logits
    argmax = decoder.forward(batch, kv, logits="argmax").argmax
    assert logits is not None
    assert argmax is not None
    assert logits.shape == (2, VOCAB_SIZE)
    assert logits.dtype == torch.float32
    assert argmax.tolist() == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("features", [False, True])
def test_the_last_layer_is_finished_for_the_wanted_rows_alone_and_nothing_else_changes(
    decoder: TorchDecoder, features: bool
) -> None:
    batch = make_batch([random_ids(8), random_ids(3)], scattered_pages(2, 1))
    kv, whole_kv = decoder.allocate_kv(2), decoder.allocate_kv(2)
    whole = decoder.forward(batch, whole_kv, logits="logits", features=features)
    assert whole.logits is not None
    wanted = torch.tensor([7, 10], dtype=torch.int32)
    for mode in ("logits", "none"):
        some = decoder.forward(batch._replace(logit_rows=wanted), kv, logits=mode, features=features)
        torch.testing.assert_close(kv, whole_kv)
        if some.logits is not None:
            torch.testing.assert_close(some.logits, whole.logits[wanted])
        if features:
            torch.testing.assert_close(some.features, whole.features)


def test_argmax_of_equal_logits_is_the_lowest_id(tiny_target_folder: Path) -> None:
    decoder = load_decoder(tiny_target_folder)
    decoder._weights.lm_head[300:] = decoder._weights.lm_head[100]
    decoder._weights.lm_head[101:300] = decoder._weights.lm_head[100]
    decoder._weights.lm_head[:100] = -decoder._weights.lm_head[100]
    batch = make_batch([random_ids(40)], scattered_pages(1, 3))
    argmax = decoder.forward(batch, decoder.allocate_kv(3), logits="argmax").argmax
    assert argmax is not None
    assert set(argmax.tolist()) <= {0, 100}


def test_kv_bytes_per_token_is_the_pool_divided_by_its_tokens(decoder: TorchDecoder) -> None:
    pool = decoder.allocate_kv(3)
    assert decoder.kv_bytes_per_token() * 3 * decoder.page_size == pool.nbytes
