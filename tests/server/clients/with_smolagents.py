# /// script
# dependencies = ["smolagents[openai]==1.26.0"]
# ///
"""smolagents: a chat, a stream, an agent that calls tools."""

from smolagents import OpenAIModel, ToolCallingAgent, tool
from trial import MODEL, URL, tried

model = OpenAIModel(MODEL, api_base=f"{URL}/v1", api_key="none", temperature=0, max_tokens=120)
QUESTION = [{"role": "user", "content": [{"type": "text", "text": "Why is the sky blue?"}]}]


@tool
def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return f"21 degrees in {city}"


@tried("chat")
def chat():
    assert model.generate(QUESTION, stop_sequences=["Observation:"]).content


@tried("stream")
def stream():
    assert "".join(part.content or "" for part in model.generate_stream(QUESTION))


@tried("tool-calling agent")
def agent():
    agent = ToolCallingAgent(tools=[weather], model=model, max_steps=2)
    assert agent.run("Is it warm in Lima?") is not None
    assert any(getattr(step, "tool_calls", None) for step in agent.memory.steps)
