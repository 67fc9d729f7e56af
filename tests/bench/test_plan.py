"""The roofline: known models have their known sizes, and more load costs what it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fledge.base.errors import DataError, TargetError
from fledge.bench.plan.options import PlanOptions
from fledge.bench.plan.predict import Device, forward_seconds, make_plan, tree_tau
from fledge.bench.plan.shape import HeadShape, read_shape, shape_of
from fledge.engine import TreeShape

LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}
H100S = PlanOptions(bandwidth_gb_s=3350, tflops=989, devices=8)


def test_known_models_have_their_known_sizes() -> None:
    llama = shape_of(LLAMA_70B)
    assert llama.weights == pytest.approx(69.5e9, rel=0.01)  # 70.6e9 with the embedding
    assert llama.layers * llama.kv_width * 2 == 327_680  # bytes per token in bf16
    assert shape_of(SMOLLM2).weights * 2 == pytest.approx(269e6, rel=0.01)
    head = HeadShape.of(llama)
    assert 0.01 < (head.weights + head.fc) / llama.weights < 0.05  # the article's 2-5 %


def config(kind: str, hidden: int, layers: int, heads: tuple[int, int], vocab: int, **others: Any) -> dict:
    """As published; `heads` of queries and of keys."""
    names = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return dict(zip(names, (kind, hidden, layers, *heads), strict=True)) | {"vocab_size": vocab} | others


QWEN3 = config(
    "qwen3_moe", 4096, 94, (64, 4), 151936, head_dim=128, intermediate_size=12288, moe_intermediate_size=1536,
    num_experts=128, num_experts_per_tok=8, decoder_sparse_step=1, mlp_only_layers=[],
)  # fmt: skip
QWEN3_30B = config(
    "qwen3_moe", 2048, 48, (32, 4), 151936, head_dim=128, intermediate_size=6144, moe_intermediate_size=768,
    num_experts=128, num_experts_per_tok=8, decoder_sparse_step=1, mlp_only_layers=[],
)  # fmt: skip
QWEN15 = config(
    "qwen2_moe", 2048, 24, (16, 16), 151936, intermediate_size=5632, moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632, num_experts=60, num_experts_per_tok=4,
)  # fmt: skip
LLAMA4 = config(
    "llama4_text", 5120, 48, (40, 8), 202048, head_dim=128, intermediate_size=8192, intermediate_size_mlp=16384,
    num_experts_per_tok=1,
)  # fmt: skip
DEEPSEEK = config(
    "deepseek_v3", 7168, 61, (128, 128), 129280, intermediate_size=18432, moe_intermediate_size=2048,
    first_k_dense_replace=3, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, q_lora_rank=1536,
    kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
)  # fmt: skip
GPT_OSS = config(
    "gpt_oss", 2880, 36, (64, 8), 201088, head_dim=64, intermediate_size=2880, num_local_experts=128,
    num_experts_per_tok=4, sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 18,
    quantization_config={"quant_method": "mxfp4"},
)  # fmt: skip
GEMMA3 = {  # leaves its vocabulary and which layers have windows to its class
    "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504, "sliding_window": 1024,
}  # fmt: skip


@pytest.mark.parametrize(
    ("published", "billions", "active", "kv_bytes"),
    [
        (QWEN3, 235, 22, 192_512),
        (QWEN15, 14.3, 2.7, 196_608),
        (
            {"text_config": LLAMA4 | {"num_local_experts": 16, "interleave_moe_layer_step": 1}},
            108,
            17,
            196_608,
        ),
        (
            {"text_config": LLAMA4 | {"num_local_experts": 128, "interleave_moe_layer_step": 2}},
            401,
            17,
            196_608,
        ),
        (DEEPSEEK, 671, 37, 70_272),
        (GPT_OSS, 116.8, 5.7, 73_728),
        (
            {"text_config": GEMMA3},
            28.4,
            28.4,
            507_904,
        ),  # its lm_head is the embedding, which counts twice here
    ],
)
def test_published_models_have_their_published_sizes(
    published: dict, billions: float, active: float, kv_bytes: int
) -> None:
    shape = shape_of(published)
    embedding = shape.hidden * shape.vocab
    assert (shape.weights + embedding) / 1e9 == pytest.approx(billions, rel=0.015)
    assert (shape.weights_per_token + embedding) / 1e9 == pytest.approx(active, rel=0.02)
    assert shape.layers * shape.kv_width * 2 == kv_bytes


def test_layers_with_a_window_see_no_more_than_it() -> None:
    assert shape_of(GPT_OSS).seen(32_768) == 18 * (32_768 + 128)
    assert shape_of({"text_config": GEMMA3}).seen(32_768) == 10 * 32_768 + 52 * 1024
    mistral = config("mistral", 4096, 32, (32, 8), 32000, intermediate_size=14336, sliding_window=4096)
    assert shape_of(mistral).seen(32_768) == 32 * 4096
    assert shape_of(mistral).seen(100) == shape_of(mistral | {"sliding_window": None}).seen(100) == 3200


def test_the_head_of_a_mixture_of_experts_is_as_wide_as_fledge_makes_it() -> None:
    target = shape_of(QWEN3)
    width = 6 * 4096
    assert (
        HeadShape.of(target).weights == (64 + 8) * 128 * 8192 + 8192 * 4096 + 3 * 4096 * width + 32_000 * 4096
    )


def test_the_bits_of_a_weight_are_told_where_the_checkpoint_is_quantised() -> None:
    assert Device.of(H100S).weight_bytes == 2.0
    options = H100S.changed(weight_bits=4.25)
    assert Device.of(options).weight_bytes == 4.25 / 8
    (told,) = (note for note in make_plan(shape_of(GPT_OSS), options).notes if "quantised" in note)
    assert "(mxfp4); 4.25 bits are taken for each: --weight-bits" in told
    assert not any("quantised" in note for note in make_plan(shape_of(LLAMA_70B), options).notes)


@pytest.mark.parametrize(
    ("name", "published", "bits"),
    [
        ("Llama-3.3-70B", LLAMA_70B, 16.0),
        ("Qwen3-30B-A3B", QWEN3_30B, 16.0),
        ("gpt-oss-120b", GPT_OSS, 4.25),
        ("DeepSeek-V3", DEEPSEEK, 8.0),
    ],
)
def test_the_figures_of_the_large_targets_follow_from_the_formulas(
    name: str, published: dict, bits: float
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "large.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {name}, "))
    options = H100S.changed(engine="vllm", weight_bits=bits, conversations=50_000, tokens_each=700)
    plan = make_plan(shape_of(published), options)
    speeds = {speed.concurrency: f"{speed.speedup:.2f}x" for speed in plan.speeds}
    sizes = {line[0]: line[-1] for line in plan.byte_table.rows}
    cells = [f"{name}, {bits:g}", speeds[1], speeds[64], sizes["weights"], sizes["features"]]
    assert [cell.strip() for cell in row.strip("|").split("|")] == cells


def test_the_engine_decides_what_is_drafted() -> None:
    assert H100S.shape == TreeShape(4, 4, 16)
    for engine in ("vllm", "sglang"):
        assert H100S.changed(engine=engine).shape == TreeShape(3, 1, 4)
    assert H100S.changed(engine="sglang", tree=(5, 4, 8)).shape == TreeShape(5, 4, 8)
    with pytest.raises(DataError, match="chains alone"):
        H100S.changed(engine="vllm", tree=(4, 4, 16))
    gemma = shape_of(GEMMA3 | {"architectures": ["Gemma3ForCausalLM"]})
    warned = {
        engine: any("can't draft" in note for note in make_plan(gemma, H100S.changed(engine=engine)).notes)
        for engine in ("fledge", "vllm")
    }
    assert warned == {"fledge": False, "vllm": True}


def test_a_mixture_of_experts_reads_more_of_them_with_more_rows() -> None:
    moe = shape_of(
        LLAMA_70B | {"num_local_experts": 16, "num_experts_per_tok": 1, "moe_intermediate_size": 8192}
    )
    assert moe.weights_read(1) == pytest.approx(moe.weights_per_token)
    assert moe.weights_read(1) < moe.weights_read(16) < moe.weights_read(1000) <= moe.weights


def test_few_rows_are_bound_by_reading_and_many_by_computing() -> None:
    model = shape_of(LLAMA_70B)
    device = Device(bandwidth=1e12, flops=1e14, weight_bytes=2.0, launch=0.0)
    one, eight, many, more = (forward_seconds(model, device, rows, 1, 1) for rows in (1, 8, 512, 1024))
    assert one == pytest.approx(model.weights * 2 / 1e12, rel=1e-4)
    assert eight == pytest.approx(one, rel=1e-3)
    assert more == pytest.approx(2 * many, rel=1e-2)
    assert many > model.weights * 2 * 512 / 1e14  # reading takes its share of it


def test_tau_adds_up_the_depths_and_goes_on_beyond_them() -> None:
    assert tree_tau((0.8, 0.4), 2) == pytest.approx(2.2)
    assert tree_tau((0.8, 0.4), 1) == pytest.approx(1.8)
    assert tree_tau((0.8, 0.4), 3) == pytest.approx(2.2 + 0.2)


def test_the_plan_of_a_70b_is_what_such_machines_do() -> None:
    plan = make_plan(shape_of(LLAMA_70B, "llama-70b"), H100S)
    speeds = {row.concurrency: row for row in plan.speeds}
    assert 5 < speeds[1].tpot_plain_ms < 20
    assert 1.8 < speeds[1].speedup < speeds[1].tau
    assert speeds[1].speedup > speeds[64].speedup
    assert "llama-70b" in plan.title
    assert {len(row) for row in plan.speed_table.rows} == {len(plan.speed_table.columns)}
    sizes = {name: size for name, _, size in plan.byte_table.rows}
    assert sizes["weights"] == "139 GB"
    assert sizes["KV of a request"] == "336 MB"  # 1,024 tokens of 327,680 bytes
    assert sizes["features"] == "3,933 GB"  # of 60 million tokens four hidden states in bf16, and ids


def test_slow_processors_gain_nothing_from_large_trees_under_load() -> None:
    options = PlanOptions(bandwidth_gb_s=30, tflops=0.5, concurrency=(1, 64), overhead_us=0)
    plan = make_plan(shape_of(SMOLLM2), options)
    assert plan.speeds[1].speedup < 1
    assert any("With 64 in flight this loses" in note for note in plan.notes)
    experts = make_plan(shape_of(QWEN3), H100S.changed(concurrency=(1, 2, 256)))  # few read the same ones
    assert experts.speeds[0].speedup < 1 < experts.speeds[2].speedup
    assert any("With 1, 2 in flight this loses" in note for note in experts.notes)


def test_unusable_assumptions_are_refused() -> None:
    for changes in (
        {"tflops": 0.0},
        {"bandwidth_gb_s": float("nan")},
        {"overhead_us": -1.0},
        {"efficiency": 1.5},
        {"tree": (4, 4)},
        {"acceptance": (0.5, 0.6)},
        {"acceptance": ()},
        {"concurrency": (0,)},
        {"tree": (0, 4, 4)},
        {"conversations": 0},
    ):
        with pytest.raises(DataError):
            PlanOptions(**({"bandwidth_gb_s": 1.0, "tflops": 1.0} | changes))  # type: ignore[arg-type]


def test_a_configuration_is_read_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"text_config": SMOLLM2}))
    assert read_shape(str(folder)).name == "llama"
    assert read_shape(str(folder / "config.json")).layers == 30
    with pytest.raises(TargetError, match=r"no config\.json"):
        read_shape(str(tmp_path))
    (folder / "config.json").write_text("{}")
    with pytest.raises(TargetError, match="has no hidden_size"):
        read_shape(str(folder))
    (folder / "config.json").write_text(json.dumps(SMOLLM2 | {"intermediate_size": [1536] * 30}))
    with pytest.raises(TargetError, match="no single number for intermediate_size"):
        read_shape(str(folder))
