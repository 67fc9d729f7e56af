"""Prompts as ids, and where turns begin and end, for templates of different shapes."""

from __future__ import annotations

import pytest

from fledge.base.errors import TargetError
from fledge.target import ChatTemplate
from tests.tiny import CHATML, LLAMA3, make_tokenizer

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
STRICT = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}" + CHATML
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


def test_prompt_ids_open_the_assistants_turn() -> None:
    tokenizer = make_tokenizer()
    ids = ChatTemplate(tokenizer).prompt_ids(QUESTION)
    text = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids) == text
    expected = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    assert ids == list(expected)


THINKING = (
    CHATML + "{% if add_generation_prompt and enable_thinking is false %}{{ '<think></think>' }}{% endif %}"
)


def test_what_a_template_asks_for_is_handed_to_it() -> None:
    tokenizer = make_tokenizer(THINKING)
    plain, quiet = ChatTemplate(tokenizer), ChatTemplate(tokenizer, options={"enable_thinking": False})
    assert plain.prompt_ids(QUESTION, {"enable_thinking": False}) == quiet.prompt_ids(QUESTION)
    assert tokenizer.decode(quiet.prompt_ids(QUESTION)).endswith("assistant\n<think></think>")
    assert quiet.prompt_ids(QUESTION, {"enable_thinking": True}) == plain.prompt_ids(QUESTION)
    assert plain.hash != quiet.hash


TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}],
}
WITH_TOOLS = (
    "{% for tool in tools or [] %}{{ tool.function.name }}; {% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments.at }}{% endfor %}; "
    "{% endfor %}"
)


def test_a_template_that_knows_tools_is_given_them_and_their_calls() -> None:
    tokenizer = make_tokenizer(WITH_TOOLS)
    chat = ChatTemplate(tokenizer)
    ids = chat.prompt_ids([*QUESTION, CALLED, {"role": "tool", "content": "blue"}], tools=[TOOL])
    assert tokenizer.decode(ids) == "look; user: Why is the sky blue?; assistant: look sky; tool: blue; "
    tokenizer.chat_template = {"default": CHATML, "tool_use": WITH_TOOLS}  # some have one for tools alone
    assert ChatTemplate(tokenizer).prompt_ids([*QUESTION], tools=[TOOL])[0] == ids[0]


@pytest.mark.parametrize(
    "messages", [QUESTION, [*QUESTION, CALLED], [*QUESTION, {"role": "tool", "content": ""}]]
)
def test_a_template_that_knows_no_tools_is_not_given_any(messages: list[dict[str, object]]) -> None:
    tools = [TOOL] if messages is QUESTION else []
    with pytest.raises(TargetError, match="doesn't support tools"):
        ChatTemplate(make_tokenizer(CHATML)).prompt_ids(messages, tools=tools)
    with pytest.raises(TargetError, match=r"doesn't support tools|has no chat template"):
        ChatTemplate(make_tokenizer(None)).prompt_ids(messages, tools=tools)


def test_a_template_may_show_calls_and_not_what_is_on_offer() -> None:
    shown = "{% for m in messages %}{{ m.role }}: {{ m.tool_calls or m.content }}; {% endfor %}"
    chat = ChatTemplate(make_tokenizer(shown))
    assert chat.prompt_ids([*QUESTION, CALLED, {"role": "tool", "content": "blue"}])
    with pytest.raises(TargetError, match="doesn't support tools"):
        chat.prompt_ids(QUESTION, tools=[TOOL])


@pytest.mark.parametrize("name", ["thinking", "enable", "messages", "tokenize"])
def test_what_a_template_does_not_ask_for_is_refused(name: str) -> None:
    with pytest.raises(TargetError, match=f"doesn't ask for '{name}'"):
        ChatTemplate(make_tokenizer(THINKING), options={name: False})
    with pytest.raises(TargetError, match=f"doesn't ask for '{name}'"):
        ChatTemplate(make_tokenizer(THINKING)).prompt_ids(QUESTION, {name: False})


def test_special_tokens_are_not_added_twice() -> None:
    tokenizer = make_tokenizer(LLAMA3, "<|eot_id|>")
    ids = ChatTemplate(tokenizer).prompt_ids(QUESTION)
    assert ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(
    ("template", "start"),
    [
        (CHATML, "<|im_start|>user\n"),
        ("{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}" + CHATML,
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"),
        (LLAMA3, "<|endoftext|><|start_header_id|>user<|end_header_id|>\n\n"),
        (MISTRAL, "<|endoftext|>[INST]"),
    ],
)  # fmt: skip
def test_user_turn_start_ends_where_the_user_begins(template: str, start: str) -> None:
    tokenizer = make_tokenizer(template)
    ids = ChatTemplate(tokenizer).user_turn_start()
    assert tokenizer.decode(ids) == start


def test_user_turn_start_begins_every_prompt() -> None:
    for template in (CHATML, LLAMA3, MISTRAL):
        chat = ChatTemplate(make_tokenizer(template))
        start, prompt = chat.user_turn_start(), chat.prompt_ids(QUESTION)
        assert prompt[: len(start)] == start


def test_turn_ends_are_the_end_of_text_and_the_templates_own() -> None:
    chatml = make_tokenizer(CHATML, "<|endoftext|>")
    ids = chatml.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert ChatTemplate(chatml).turn_end_ids == set(ids)
    llama = make_tokenizer(LLAMA3, "<|endoftext|>")
    ids = llama.convert_tokens_to_ids(["<|endoftext|>", "<|eot_id|>"])
    assert ChatTemplate(llama).turn_end_ids == set(ids)
    assert ChatTemplate(llama, [17]).turn_end_ids == {*ids, 17}


def test_plain_text_after_a_reply_is_no_end_of_turn() -> None:
    tokenizer = make_tokenizer(
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    )
    assert ChatTemplate(tokenizer).turn_end_ids == {tokenizer.eos_token_id}


def test_nothing_ends_a_turn_where_the_template_rewrites_replies() -> None:
    tokenizer = make_tokenizer(CHATML.replace("message['content']", "(message['content'] | upper)"))
    assert ChatTemplate(tokenizer).turn_end_ids == {tokenizer.eos_token_id}


def test_a_template_of_parts_keeps_the_users_words() -> None:
    """As multimodal targets have them: of plain text they make nothing, and say nothing."""
    parts = CHATML.replace(
        "+ message['content']", "}}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{{ ''"
    )
    chat, plain = ChatTemplate(make_tokenizer(parts)), ChatTemplate(make_tokenizer(CHATML))
    assert chat.prompt_ids(QUESTION) == plain.prompt_ids(QUESTION)
    assert chat.user_turn_start() == plain.user_turn_start()
    assert chat.turn_end_ids == plain.turn_end_ids


def test_hash_follows_the_template() -> None:
    assert ChatTemplate(make_tokenizer(CHATML)).hash == ChatTemplate(make_tokenizer(CHATML)).hash
    assert ChatTemplate(make_tokenizer(CHATML)).hash != ChatTemplate(make_tokenizer(LLAMA3)).hash


def test_a_target_without_template_says_so() -> None:
    chat = ChatTemplate(make_tokenizer(None))
    assert chat.turn_end_ids
    with pytest.raises(TargetError, match="no chat template"):
        chat.prompt_ids(QUESTION)


def test_messages_the_template_refuses_are_one_clear_error() -> None:
    chat = ChatTemplate(make_tokenizer(STRICT))
    with pytest.raises(TargetError, match="user first"):
        chat.prompt_ids([{"role": "assistant", "content": "Hi"}])


CALLING = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }}{% endfor %}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}CALL"
    "{% endfor %}{% if m.role == 'assistant' %}<|eot_id|>{% else %}<|im_end|>{% endif %}\n{% endfor %}"
)
AS_JSON = CALLING.replace("CALL", "{{ call.function.name }}{{ call.function.arguments | tojson }}")
_PAIRS = "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}"
BY_NAME = CALLING.replace("CALL", "{{ call.function.name }}" + _PAIRS)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def called(arguments: object) -> list[dict[str, object]]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]


def test_of_named_templates_the_one_for_tools_is_asked_what_it_can_do() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = {"default": CHATML, "tool_use": AS_JSON}
    chat = ChatTemplate(tokenizer)
    assert chat.takes_tools
    assert chat.shows_calls
    for tools in ([TOOL], []):  # without tools, as for tool_choice "none", the calls are still in the history
        text = tokenizer.decode(chat.prompt_ids(called({"a": 1}), tools=tools))
        assert 'look{"a": 1}' in text
        assert "42" in text
    assert tokenizer.decode(chat.prompt_ids(QUESTION)).startswith("<|im_start|>user\nWhy")
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|eot_id|>"])
    assert chat.turn_end_ids >= set(ends)  # each template closes replies in its own way


def test_a_template_without_tool_turns_is_still_refused_them() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = {"default": CHATML, "rag": AS_JSON}
    with pytest.raises(TargetError, match="doesn't support tools"):
        ChatTemplate(tokenizer).prompt_ids(called({}), tools=[TOOL])


@pytest.mark.parametrize(
    ("template", "shown"),
    [(AS_JSON, "\"{'a': 1}\""), (BY_NAME, "arguments={'a': 1};")],
    ids=["json", "by name"],
)
def test_arguments_that_are_no_json_reach_the_template_as_text(template: str, shown: str) -> None:
    tokenizer = make_tokenizer(template)
    text = ChatTemplate(tokenizer).render(called("{'a': 1}"), tools=[TOOL])
    assert shown.replace("'", "\\u0027") in text or shown in text
