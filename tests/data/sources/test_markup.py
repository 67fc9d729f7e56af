"""Rendered conversations of templates and speakers that no list has: read, or rejected, and never one prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fledge.bench
from fledge.data.filters import has_template_text
from fledge.data.sources import user_turns

Q, Q2, A = (
    "Why do boats float on the water at all?",
    "And why do some sink?",
    "ANSWERTEXT that another model wrote.",
)
BOS, EOS = "<[begin▁of▁sentence]>", "<[end▁of▁sentence]>"
PROMPTS_OF_BENCH = Path(fledge.bench.__file__).parent / "prompts"

TEMPLATES = {
    "minimax-m2": "]~!b[]~b]system\nYou help.[e~[\n]~b]user\n{q}[e~[\n]~b]ai\n{a}[e~[\n",
    "minimax-m2, no system prompt": "]~!b[]~b]user\n{q}[e~[\n]~b]ai\n{a}[e~[\n",
    "minimax-text": "<beginning_of_sentence>user name=user\n{q}<end_of_sentence>\n"
    "<beginning_of_sentence>ai name=assistant\n{a}<end_of_sentence>\n",
    "seed-oss": "<seed:bos>user\n{q}<seed:eos><seed:bos>assistant\n{a}<seed:eos>",
    "another role": "<seed:bos>user\n{q}<seed:eos><seed:bos>falcon\n{a}<seed:eos>",
    "seed-coder": f"{BOS}system\nS\n\n{EOS}{BOS}user\n{{q}}{EOS}{BOS}assistant\n{{a}}",
    "hunyuan": "<｜hy_begin▁of▁sentence｜><｜hy_User｜>{q}<｜hy_Assistant｜>{a}<｜hy_place▁holder▁no▁2｜>",
    "hunyuan, system": "<｜hy_begin▁of▁sentence｜>S<｜hy_place▁holder▁no▁3｜><｜hy_User｜>{q}<｜hy_Assistant｜>{a}",
    "nemotron": "<SPECIAL_10>System\n<SPECIAL_11>User\n{q}\n<SPECIAL_11>Assistant\n<think></think>{a}\n<SPECIAL_12>\n",
    "telechat": "<_user>{q}<_bot>{a}<_end>",
    "afm": "<turn_start> system<n>S<turn_end><turn_start> user<n>{q}<turn_end><turn_start> assistant<n>{a}<turn_end>",
    "plain tokens": "<turn>system\nS<turn>user\n{q}<turn>model\n{a}",
    "roles in tokens": "<user_turn>{q}<assistant_turn>{a}",
    "doubled brackets": "[[USER]] {q} [[ASSISTANT]] {a}",
    "other brackets": "【用户】{q}【助手】{a}",
    "attributes": '<message role="user">{q}</message><message role="assistant">{a}</message>',
}
SPEAKERS = {
    "longcat": "SYSTEM:S [Round 0] USER:{q} ASSISTANT:{a}</longcat_s>[Round 1] USER:{q2} ASSISTANT:{a}</longcat_s>",
    "falcon": "System: S\nUser: {q}\nFalcon: {a}\nNote: {a}\nUser: {q2}\nFalcon: {a}",
    "gemini": "user: {q}\nmodel: {a}\nuser: {q2}\nmodel: {a}",
    "pangu": "[unused9]系统：[unused10][unused9]用户：{q}[unused10][unused9]助手：{a}[unused10][unused9]用户：{q2}",
    "reka": "human: {q} <sep> assistant: {a} <sep> human: {q2} <sep>",
    "koala": "BEGINNING OF CONVERSATION: USER: {q} GPT: {a} USER: {q2} GPT:",
    "skywork": "[USER]{q}[SEP][BOT]{a}[SEP][USER]{q2}[SEP][BOT]",
    "ling": "<role>HUMAN</role>{q}<role>ASSISTANT</role>{a}<role>HUMAN</role>{q2}",
    "xuanyuan": "<s>S. Human: {q} Assistant: {a}</s> Human: {q2} Assistant:",
    "moss": "<|Human|>: {q}<|Assistant|>: {a}<|Human|>: {q2}",
    "ruled": "--- user ---\n{q}\n--- assistant ---\n{a}\n--- user ---\n{q2}",
    "emoji": "🧑 User: {q}\n🤖 Assistant: {a}\n🧑 User: {q2}",
    "page": "You said:\n{q}\nChatGPT said:\n{a}\nYou said:\n{q2}",
    "bold": "**You:** {q}\n\n**ChatGPT:** {a}\n\n**You:** {q2}",
    "headings": "# User\n\n{q}\n\n# Falcon\n\n{a}\n\n# User\n\n{q2}",
    "parentheses": "(User) {q}\n(Falcon) {a}\n(User) {q2}",
    "chat room": "<user> {q}\n<falcon> {a}\n<user> {q2}",
    "shell": "user> {q}\nfalcon> {a}\nuser> {q2}",
}


def turns_of(text: str, column: str) -> tuple[str, ...] | str:
    """What the prompts stage keeps of a text in this column."""
    found = user_turns({column: text.replace("{q}", Q).replace("{q2}", Q2).replace("{a}", A)}, "prompt")
    if isinstance(found, str):
        return found
    return "template" if any(has_template_text(turn, ()) for turn in found.turns) else found.turns


@pytest.mark.parametrize("column", ["text", "prompt"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_marks_of_unknown_templates_are_noticed(name: str, column: str) -> None:
    assert turns_of(TEMPLATES[name], column) == "template"
    assert has_template_text(TEMPLATES[name].replace("{q}", Q).replace("{a}", A), ())  # as a turn of messages


@pytest.mark.parametrize("column", ["text", "prompt"])
@pytest.mark.parametrize("name", SPEAKERS)
def test_two_speakers_are_read_however_they_are_marked(name: str, column: str) -> None:
    assert turns_of(SPEAKERS[name], column) in ((Q, Q2), *(("transcript",) if column == "prompt" else ()))


SINGLE = [
    "User: {q}\nFalcon: {a}",
    "user: {q}\nmodel: {a}",
    "You: {q}\nChatGPT: {a}",
    "**User:** {q}\n\n**Falcon:** {a}",
    "A chat with Falcon.\n\nUser: {q}\nFalcon: {a}",
    "[Round 0] USER:{q} ASSISTANT:{a}</longcat_s>",
    "# User\n\n{q}\n\n# Falcon\n\n{a}",
]


@pytest.mark.parametrize("text", SINGLE)
def test_one_question_with_an_answer_by_anybody(text: str) -> None:
    assert turns_of(text, "text") == (Q,)
    assert turns_of(text, "prompt") in ((Q,), "transcript")


@pytest.mark.parametrize(
    "text", ["<question>{q}</question>\n<answer>{a}</answer>", "<prompt>{q}</prompt><response>{a}"]
)
def test_a_question_and_its_answer_in_tags_are_no_prompt(text: str) -> None:
    assert turns_of(text, "text") == turns_of(text, "prompt") == "transcript"


PROMPTS = [
    "Continue this play:\nALICE: Where are you going?\nBOB: To the harbour.\nALICE: Why?",
    "Continue this play:\n\nUSER: Where are you going today?\nFALCON: To the harbour, I think.\n",
    "ALICE: Where are you going now?\nBOB: To the harbour.\nALICE: Why?\n\nContinue this play.",
    "Summarise this chat log:\n[10:31] User: hi there\n[10:32] Bot: hello\nKeep it short.",
    "Translate into German:\nUser: the printer doesn't print\nSupport: please restart it",
    "Here is my story.\n\nRobot: I hear the rain.\nGirl: Come inside.\n\nRobot: I will.\n\nWrite the next scene.",
    "Alice: Bob, are you coming to the party?\nEve: He isn't.\nBot: ...\nWho is who?",
    "Interviewer: Why should we hire you?\nCandidate: Because I work hard.\nRate this answer.",
    "The log says\nUser: alice\nHost: web-1\nError: disk full\nWhat should I do?",
    "user: alice\nmodel: gpt-4\nHow do I write this in TOML?",
    "Model: X200\nPrice: 5\nModel: X300\nPrice: 6\nWhich is cheaper?",
    "What's the difference between USER: and ASSISTANT: in a prompt for Vicuna?",
    "docker run -e USER:root -e ASSISTANT:none image. Is this syntax right?",
    "# User guide\n\nHow do I start?\n\n# Admin guide\n\nTranslate these headings to German.",
    "<ul>\n<li>user\n<li>assistant\n<li>bot\n</ul>\nTurn this into a table.",
    "<table><tr><td>User</td><td>Assistant</td></tr><tr><td>logs in</td><td>answers</td></tr></table> Explain it.",
    '<div class="user">Hi</div><div class="bot">Hello</div> - style these bubbles with CSS.',
    "What is wrong here?\n<app-user>{{ name }}</app-user>\n<app-bot>{{ reply }}</app-bot>",
    "<user_name>Alice</user_name>\n<bot_name>HAL</bot_name>\nValidate this.",
    "In React, <User /> renders before <Assistant /> although I await it. Why?",
    "curl https://x/users/<user_id>/bots/<bot_id> returns 404, why?",
    "Why does this not compile?\nstd::vector<app::User> users;\nstd::vector<app::Bot> bots;\n",
    "How do I cast Vec<User> to Vec<Bot>, or arr[user] to arr[bot], in Rust?",
    'cout<<user<<" says hi "<<bot<<endl; what does this print?',
    "Explain: [db_user]\nname = x\n[db_model]\nname = y",
    "See [[User]] and [[Bot]] in my notes: what's a wiki link?",
    "Fill in: Dear {{user}}, your {{assistant}} will call.",
    "- [x] User can log in\n- [x] AI answers\nWhat is missing in this checklist?",
    "[1] user\n[2] admin\n[3] bot\nSort these lines.",
    "Is `x |> f` the same as `f(x)` in Elixir?",
]


@pytest.mark.parametrize("text", PROMPTS)
def test_prompts_with_dialogues_tags_and_code_are_kept_whole(text: str) -> None:
    assert turns_of(text, "prompt") == (text.strip(),)


def test_no_prompt_of_the_benchmarks_is_taken_for_a_conversation() -> None:
    rows = [
        json.loads(line) for file in PROMPTS_OF_BENCH.rglob("*.jsonl") for line in file.open(encoding="utf-8")
    ]
    texts = [turn for row in rows for turn in row["turns"]]
    assert len(texts) > 300
    assert [text for text in texts if turns_of(text, "prompt") != (text.strip(),)] == []


RESULT = "<tool_response>\n42 degrees\n</tool_response>"


@pytest.mark.parametrize(
    ("content", "turns", "results"),
    [
        (RESULT, (Q, "two"), [("", "42 degrees")]),
        (f"{RESULT}\n<tool_response>3</tool_response>", (Q, "two"), [("", "42 degrees"), ("", "3")]),
        (f"{RESULT}\nAnd tomorrow?", (Q, "And tomorrow?", "two"), [("", "42 degrees")]),
        (
            "<function_results>\n<result>42</result>\n</function_results>",
            (Q, "two"),
            [("", "<result>42</result>")],
        ),
        ("<tool_output name='f'>42</tool_output>", (Q, "two"), [("", "42")]),
        ("Observation: 42 degrees", (Q, "two"), [("", "42 degrees")]),
        ("What does <tool_response> mean?", (Q, "What does <tool_response> mean?", "two"), []),
    ],
)
def test_a_tools_result_is_no_turn_of_the_user(content: str, turns: Any, results: Any) -> None:
    call = "<tool_call>\n{}\n</tool_call>"
    said = [("user", Q), ("assistant", call), ("user", content), ("assistant", A), ("user", "two")]
    rows: list[Any] = [
        {"messages": [{"role": role, "content": text} for role, text in said]},
        {"text": "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)},
    ]
    for row in rows:
        found = user_turns(row, "messages" if "messages" in row else "prompt")
        assert not isinstance(found, str)
        assert (found.turns, list(found.results[0]) if found.results else []) == (turns, results)
