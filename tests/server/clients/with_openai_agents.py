# /// script
# dependencies = ["openai-agents==0.24.0"]
# ///
"""OpenAI's agents, with their default (responses) and over chat completions."""

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from trial import MODEL, tried

SHORT = ModelSettings(temperature=0, max_tokens=400)  # an answer that is cut off is an error here
calls = []


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=30)
    inhabitants: int


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    calls.append(city)
    return f"21 degrees in {city}"


for kind, model in (("responses", MODEL), ("chat", OpenAIChatCompletionsModel(MODEL, AsyncOpenAI()))):

    @tried(f"{kind}: text")
    async def text(model=model):
        agent = Agent("a", instructions="Be brief.", model=model, model_settings=SHORT)
        assert (await Runner.run(agent, "Why is the sky blue?")).final_output

    @tried(f"{kind}: stream")
    async def stream(model=model):
        running = Runner.run_streamed(Agent("a", model=model, model_settings=SHORT), "Why is the sky blue?")
        assert [event.type async for event in running.stream_events()]
        assert running.final_output

    @tried(f"{kind}: tools")
    async def tools(model=model):
        calls.clear()
        forced = ModelSettings(temperature=0, max_tokens=120, tool_choice="required")
        agent = Agent("a", model=model, tools=[weather], model_settings=forced)
        result = await Runner.run(agent, "Is it warm in Lima?", max_turns=8)
        assert calls
        assert result.final_output is not None

    @tried(f"{kind}: structured output")
    async def structured(model=model):
        agent = Agent("a", model=model, output_type=City, model_settings=SHORT)
        assert isinstance((await Runner.run(agent, "Name a city.")).final_output, City)
