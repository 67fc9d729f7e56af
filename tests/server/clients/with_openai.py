# /// script
# dependencies = ["openai==3.51.0"]
# ///
"""OpenAI's Python client."""

import json

import openai
from pydantic import BaseModel
from trial import MODEL, tried

client = openai.OpenAI()
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


class City(BaseModel):
    """What an answer is parsed as."""

    name: str
    inhabitants: int


@tried("models")
def models():
    assert MODEL in [model.id for model in client.models.list()]


@tried("chat")
def chat():
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 40 or answer.choices[0].finish_reason == "stop"


@tried("stream")
def stream():
    options = {
        "model": MODEL,
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 400,
    }  # .stream() wants the end
    whole = client.chat.completions.create(**options).choices[0].message.content
    parts = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options)
    chunks = list(parts)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert chunks[-1].usage.completion_tokens
    with client.chat.completions.stream(**options) as events:
        assert events.get_final_completion().choices[0].message.content == whole


@tried("tools")
def tools():
    offered = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    messages = [{"role": "user", "content": "Is it warm in Lima?"}]
    called = client.chat.completions.create(
        model=MODEL, messages=messages, tools=offered, tool_choice="required", temperature=0, max_tokens=80
    )
    message = called.choices[0].message
    assert called.choices[0].finish_reason == "tool_calls"
    assert "city" in json.loads(message.tool_calls[0].function.arguments)
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"} for call in message.tool_calls
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=[*messages, message, *results], tools=offered, temperature=0, max_tokens=40
    )
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


@tried("structured output")
def structured():
    parsed = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Name a city and its inhabitants as JSON."}],
        response_format=City,
        temperature=0,
        max_tokens=80,
    )
    assert isinstance(parsed.choices[0].message.parsed, City)


@tried("responses")
def responses():
    first = client.responses.create(
        model=MODEL, input="Why is the sky blue?", temperature=0, max_output_tokens=40
    )
    assert first.output_text
    following = client.responses.create(
        model=MODEL, input="And at night?", previous_response_id=first.id, temperature=0, max_output_tokens=20
    )
    assert following.output_text
    kinds = [
        event.type
        for event in client.responses.create(
            model=MODEL, input="Why is the sky blue?", temperature=0, max_output_tokens=40, stream=True
        )
    ]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    parsed = client.responses.parse(
        model=MODEL, input="Name a city as JSON.", text_format=City, temperature=0, max_output_tokens=80
    )
    assert isinstance(parsed.output_parsed, City)
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    called = client.responses.create(
        model=MODEL,
        input="Is it warm in Lima?",
        tools=[tool],
        tool_choice="required",
        temperature=0,
        max_output_tokens=80,
    )
    assert called.output[0].type == "function_call"
    assert "city" in json.loads(called.output[0].arguments)


@tried("completions with logprobs")
def completions():
    text = client.completions.create(
        model=MODEL, prompt="The sky is", max_tokens=5, temperature=0, logprobs=2, echo=True
    ).choices[0]
    assert text.text.startswith("The sky is")
    assert len(text.logprobs.tokens) == len(text.logprobs.token_logprobs)
    assert text.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in text.logprobs.token_logprobs[1:])


def refused(kind, **wrong):
    try:
        client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **wrong})
    except kind:
        return
    raise RuntimeError(f"{wrong} is answered")


@tried("errors")
def errors():
    refused(openai.NotFoundError, model="no-such-model")
    refused(openai.BadRequestError, max_tokens=100_000)
