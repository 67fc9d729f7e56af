"""The LLM being accelerated: finding it, its weights, its decoder and its chat template."""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.sources.find import DEFAULT_TARGET
    from fledge.target.batch import Decoder, ForwardBatch, ForwardOutput, LogitsMode
    from fledge.target.chat import ChatTemplate
    from fledge.target.config import DecoderConfig
    from fledge.target.decoder import TorchDecoder
    from fledge.target.families import SUPPORTED_ARCHITECTURES
    from fledge.target.options import TargetOptions
    from fledge.target.resolve import ResolvedTarget, resolve_target
    from fledge.target.rope import apply_rope, rope_table, rope_tables
    from fledge.target.target import Target
    from fledge.target.weights import DecoderWeights, EndWeights, LayerWeights, load_weights
else:
    __getattr__ = on_first_use(__name__)

__all__ = [
    "DEFAULT_TARGET",
    "SUPPORTED_ARCHITECTURES",
    "ChatTemplate",
    "Decoder",
    "DecoderConfig",
    "DecoderWeights",
    "EndWeights",
    "ForwardBatch",
    "ForwardOutput",
    "LayerWeights",
    "LogitsMode",
    "ResolvedTarget",
    "Target",
    "TargetOptions",
    "TorchDecoder",
    "apply_rope",
    "load_weights",
    "resolve_target",
    "rope_table",
    "rope_tables",
]
