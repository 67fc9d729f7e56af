"""Requests about tokens alone: POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from fledge.server import renamed
from fledge.server.conversation import ChatMessage, Tools
from fledge.server.protocol import TemplateKwargs
from fledge.server.strict import Several, StrictBody
from fledge.server.values import TokenId


class TokenizeRequest(StrictBody):
    """POST /tokenize: a text, or messages through the chat template."""

    model: str | None = Field(None, max_length=512)
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Several] | None = None
    tools: Tools | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    add_special_tokens: bool | None = Field(None, description="of `prompt`; default true")
    return_token_strs: bool | None = None

    @classmethod
    def _renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        return renamed.tokenize(data)

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.messages is not None and self.add_special_tokens is not None:
            raise ValueError("add_special_tokens is for prompt; a chat template adds its own")
        if self.prompt is not None and (self.chat_template_kwargs or self.tools):
            raise ValueError("chat_template_kwargs and tools are for messages; prompt is taken as it is")
        return self


class DetokenizeRequest(StrictBody):
    """POST /detokenize."""

    model: str | None = Field(None, max_length=512)
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
