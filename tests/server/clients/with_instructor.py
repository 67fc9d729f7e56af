# /// script
# dependencies = ["instructor==1.17.0"]
# ///
"""instructor: answers as pydantic models, by tools and by JSON schemas."""

import instructor
import openai
from instructor.core import IncompleteOutputException, InstructorRetryException
from pydantic import BaseModel, ConfigDict, Field
from trial import MODEL, tried

ASKED = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Extract: Ada is 36 years old."}],
    "temperature": 0,
    "max_tokens": 120,
    "max_retries": 1,
}


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")  # or the model invents keys without end

    name: str = Field(max_length=30)
    age: int = Field(le=150)


@tried("tools")
def tools():
    client = instructor.from_openai(openai.OpenAI(), mode=instructor.Mode.TOOLS)
    assert isinstance(client.create(response_model=Person, **ASKED), Person)


@tried("JSON schema")
def json_schema():
    client = instructor.from_openai(openai.OpenAI(), mode=instructor.Mode.JSON_SCHEMA)
    assert isinstance(client.create(response_model=Person, **ASKED), Person)


@tried("JSON")
def json_object():
    client = instructor.from_openai(openai.OpenAI(), mode=instructor.Mode.JSON)
    try:
        assert isinstance(client.create(response_model=Person, **ASKED), Person)
    except (IncompleteOutputException, InstructorRetryException):
        return "valid JSON, but the model repeats the schema instead of filling it in"


@tried("partial stream")
def partial():
    client = instructor.from_openai(openai.OpenAI(), mode=instructor.Mode.JSON_SCHEMA)
    *_, last = client.create_partial(response_model=Person, **ASKED)
    assert last.name is not None


@tried("async")
async def asynchronous():
    client = instructor.from_openai(openai.AsyncOpenAI(), mode=instructor.Mode.TOOLS)
    assert isinstance(await client.create(response_model=Person, **ASKED), Person)
