# /// script
# dependencies = ["pydantic-ai-slim[openai]==2.68.0"]
# ///
"""Pydantic AI, over chat completions and over responses."""

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from trial import MODEL, tried

SHORT = {"temperature": 0, "max_tokens": 120}


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=30)
    inhabitants: int


for model in (OpenAIChatModel(MODEL), OpenAIResponsesModel(MODEL)):
    kind = "chat" if isinstance(model, OpenAIChatModel) else "responses"

    @tried(f"{kind}: text")
    def text(model=model):
        assert Agent(model, model_settings=SHORT).run_sync("Why is the sky blue?").output

    @tried(f"{kind}: stream")
    async def stream(model=model):
        async with Agent(model, model_settings=SHORT).run_stream("Why is the sky blue?") as result:
            assert await result.get_output()

    @tried(f"{kind}: output by a tool")
    def output(model=model):
        agent = Agent(model, output_type=City, model_settings=SHORT)
        assert isinstance(agent.run_sync("Name a city.").output, City)

    @tried(f"{kind}: output by a schema")
    def native(model=model):
        agent = Agent(model, output_type=NativeOutput(City), model_settings=SHORT)
        assert isinstance(agent.run_sync("Name a city.").output, City)
