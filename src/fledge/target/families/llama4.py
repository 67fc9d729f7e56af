"""Llama 4's text model: layers without RoPE, weightless norms of q and k, experts in every so many-th layer."""

from collections.abc import Sequence

from fledge.target.experts import ExpertsConfig, ExpertWeights, expert_counts
from fledge.target.families.family import Family, Fields
from fledge.target.rope_fields import SUPPORTED_SCALING
from fledge.target.tensors import TensorSource


def rope_free_layers(raw: Fields) -> tuple[int, ...]:
    """Layers without RoPE: zeros of `no_rope_layers`, or every so many-th."""
    layers, every = int(raw["num_hidden_layers"]), int(raw.get("no_rope_layer_interval") or 4)
    turned = raw.get("no_rope_layers") or [(layer + 1) % every for layer in range(layers)]
    return tuple(layer for layer, has_rope in enumerate(turned) if not has_rope)


def _fields(raw: Fields) -> Fields:
    # The decoder has neither chunked attention, which is full attention up to the first chunk's end, nor the
    # temperature of layers without RoPE, which is 1 up to `floor_scale`.
    chunk, floor = int(raw.get("attention_chunk_size") or 8192), int(raw.get("floor_scale") or 8192)
    return {
        "qk_norm": bool(raw.get("use_qk_norm", True)),
        "experts": _experts(raw),
        "rope_free_layers": rope_free_layers(raw),
        "max_position_embeddings": min(raw["max_position_embeddings"], chunk, floor - 1),
    }


def _experts(raw: Fields) -> ExpertsConfig:
    step = int(raw.get("interleave_moe_layer_step") or 1)
    layers: Sequence[int] | None = raw.get("moe_layers")  # none of them in Llama Guard 4
    if layers is None:
        layers = range(step - 1, int(raw["num_hidden_layers"]), step)
    size, dense = raw["intermediate_size"], raw["intermediate_size_mlp"]
    return ExpertsConfig(*expert_counts(raw), size, "sigmoid", size, tuple(layers), dense)


def _read_experts(source: TensorSource, place: str, experts: ExpertsConfig, hidden: int) -> ExpertWeights:
    """All experts in one tensor, its columns the outputs."""
    count, inner = experts.count, experts.intermediate_size
    return ExpertWeights(
        router=source.read(f"{place}.router.weight", count, hidden),
        gate_up=source.read(f"{place}.experts.gate_up_proj", count, hidden, 2 * inner).mT.contiguous(),
        down=source.read(f"{place}.experts.down_proj", count, inner, hidden).mT.contiguous(),
    )


FAMILY = Family(
    ("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    defaults={"max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
    fields=_fields,
    windowed_layers=lambda raw: (),
    understood=(
        "attention_chunk_size",
        "attn_temperature_tuning",
        "chunked_attention",
        "no_rope_layers",
        "use_qk_norm",
    ),
    # Norms come after RoPE and take back the factor that yarn puts on it.
    rope_scalings=tuple(kind for kind in SUPPORTED_SCALING if kind != "yarn"),
    tensor_names={"mlp": "feed_forward"},
    interleaved_rope=True,
    qk_norm_weights=False,
    read_experts=_read_experts,
)
