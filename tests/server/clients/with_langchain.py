# /// script
# dependencies = ["langchain-openai==1.7.4"]
# ///
"""LangChain's ChatOpenAI and OpenAI."""

from typing import Annotated

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field
from trial import MODEL, tried

chat = ChatOpenAI(model=MODEL, temperature=0, max_tokens=80)


class City(BaseModel):
    """A city."""

    name: str
    inhabitants: int


@tool
def weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """The weather of a city."""
    return f"21 degrees in {city}"


@tried("chat")
def invoke():
    answer = chat.invoke("Why is the sky blue?")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0


@tried("stream")
def stream():
    parts = list(chat.stream("Why is the sky blue?"))
    assert "".join(part.content for part in parts) == chat.invoke("Why is the sky blue?").content


@tried("batch")
def batch():
    assert all(answer.content for answer in chat.batch(["Hi", "Name a tree."]))


@tried("tools")
def tools():
    asked = HumanMessage("Is it warm in Lima?")
    called = chat.bind_tools([weather], tool_choice="weather").invoke([asked])
    assert called.tool_calls[0]["name"] == "weather"
    results = [
        ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in called.tool_calls
    ]
    assert chat.bind_tools([weather]).invoke([asked, called, *results]).id


@tried("structured output")
def structured():
    for method in ("json_schema", "function_calling"):
        found = chat.with_structured_output(City, method=method).invoke("Name a city and its inhabitants.")
        assert isinstance(found, City), method


@tried("responses")
def responses():
    answer = ChatOpenAI(model=MODEL, temperature=0, max_tokens=40, use_responses_api=True)
    assert answer.invoke("Why is the sky blue?").text
    assert "".join(part.text for part in answer.stream("Why is the sky blue?"))


@tried("completions")
def completions():
    assert OpenAI(model=MODEL, temperature=0, max_tokens=20).invoke("The sky is")
