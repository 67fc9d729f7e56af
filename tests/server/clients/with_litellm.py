# /// script
# dependencies = ["litellm==1.110.2"]
# ///
"""LiteLLM, as OpenAI's and as vLLM's server."""

import json
import os

import litellm
from pydantic import BaseModel
from trial import MODEL, URL, tried

AS_OPENAI = {"model": f"openai/{MODEL}", "temperature": 0, "max_tokens": 80}
AS_VLLM = {**AS_OPENAI, "model": f"hosted_vllm/{MODEL}", "api_base": f"{URL}/v1"}
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
os.environ["OPENAI_API_BASE"] = f"{URL}/v1"


class City(BaseModel):
    """A city."""

    name: str
    inhabitants: int


@tried("chat")
def chat():
    for options in (AS_OPENAI, AS_VLLM):
        assert litellm.completion(messages=QUESTION, **options).choices[0].message.content


@tried("stream")
def stream():
    for options in (AS_OPENAI, AS_VLLM):
        whole = litellm.completion(messages=QUESTION, **options).choices[0].message.content
        parts = litellm.completion(messages=QUESTION, stream=True, **options)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == whole


@tried("async chat")
async def asynchronous():
    assert (await litellm.acompletion(messages=QUESTION, **AS_OPENAI)).choices[0].message.content


@tried("tools")
def tools():
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    }
    offered = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    for options in (AS_OPENAI, AS_VLLM):
        answer = litellm.completion(messages=QUESTION, tools=offered, tool_choice="required", **options)
        (call, *_) = answer.choices[0].message.tool_calls
        assert "city" in json.loads(call.function.arguments)


@tried("structured output")
def structured():
    for options in (AS_OPENAI, AS_VLLM):
        answer = litellm.completion(messages=QUESTION, response_format=City, **options)
        City.model_validate_json(answer.choices[0].message.content)


@tried("text completion")
def text():
    assert (
        litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="The sky is", max_tokens=10)
        .choices[0]
        .text
    )


@tried("responses")
def responses():
    answer = litellm.responses(model=f"openai/{MODEL}", input="Why is the sky blue?", max_output_tokens=40)
    assert answer.output[0].content[0].text
