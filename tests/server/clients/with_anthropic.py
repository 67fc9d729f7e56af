# /// script
# dependencies = ["anthropic==2.10.0"]
# ///
"""Anthropic's Python client."""

import anthropic
from trial import MODEL, URL, tried

client = anthropic.Anthropic(base_url=URL, max_retries=0)
ASKED = {
    "model": MODEL,
    "max_tokens": 60,
    "extra_body": {"temperature": 0},  # this client has no such argument any more
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
}


@tried("messages")
def messages():
    answer = client.messages.create(system="Be brief.", **ASKED)
    assert answer.content[0].text
    assert answer.usage.output_tokens > 0
    assert answer.stop_reason in ("end_turn", "max_tokens")


@tried("stream")
def stream():
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as events:
        assert "".join(events.text_stream) == whole.content[0].text
        assert events.get_final_message().usage.output_tokens == whole.usage.output_tokens


@tried("tools")
def tools():
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    }
    offered = [{"name": "weather", "description": "The weather of a city", "input_schema": schema}]
    asked = {**ASKED, "messages": [{"role": "user", "content": "Is it warm in Lima?"}], "tools": offered}
    called = client.messages.create(tool_choice={"type": "any"}, **asked)
    assert called.stop_reason == "tool_use"
    (call, *_) = [block for block in called.content if block.type == "tool_use"]
    assert "city" in call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
    history = [
        *asked["messages"],
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    assert client.messages.create(**{**asked, "messages": history}).content


@tried("count of tokens")
def count():
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"])
    usage = client.messages.create(**ASKED).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
