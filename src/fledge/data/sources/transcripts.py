"""Conversations rendered into one text, and the users' turns in them. Answers are never returned.

    <s>[INST] one [/INST] an answer </s>           chat templates: ChatML, Llama, Mistral, Gemma, Phi, DeepSeek, ...
    ### Instruction:\\none\\n\\n### Response:\\nan answer      Alpaca, Guanaco
    Human: one\\n\\nAssistant: an answer                   speakers at the beginnings of lines
    ... USER: one ASSISTANT: an answer</s>              Vicuna

Speakers' names also occur in prompts about such texts, so they count only if they alternate. Where they do and the text
goes on in lines that nobody speaks, it depends on the column: `prompt` is then a prompt, `text` ends with an answer.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from fledge.data.sources.messages import Role

_MARKUP: tuple[tuple[str, Role], ...] = (
    (r"<<SYS>>|\[SYSTEM_PROMPT\]", "system"),
    (r"\[/INST\]", "assistant"),
    (r"\[INST\]|<</SYS>>", "user"),
    (r"\[/?(?:AVAILABLE_TOOLS|TOOL_RESULTS)\]", "tool"),
)
# <|im_start|>user, <|start_header_id|>user<|end_header_id|>, <start_of_turn>user, <|user|>, <|start|>user<|message|>
_NAMED = (
    r"<\|(?:im_start|start|start_header_id|header_start|role_start)\|>\s*(?P<a>\w+)[^<\n]*"
    r"(?:<\|(?:channel)\|>\w+)?(?:<\|(?:end_header_id|header_end|message|role_end|im_sep)\|>)?"
    r"|<start_of_turn>\s*(?P<b>\w+)"
    r"|<[|｜](?P<c>user|assistant|system|human|bot|prompter|tool|observation|USER_TOKEN|CHATBOT_TOKEN|SYSTEM_TOKEN)[|｜]>"
    r"|<(?P<d>human|bot|user|assistant)>:"
)
_MARK = re.compile(
    "|".join(f"(?P<m{n}>{mark})" for n, (mark, _) in enumerate(_MARKUP)) + "|" + _NAMED, re.IGNORECASE
)
# What ends a turn, or begins a text; BOS and EOS of many tokenizers.
_ENDS = re.compile(
    r"</?s>|<[|｜](?:im_end|end|eot_id|eot|eom_id|return|endoftext|end_of_text|begin_of_text|end_of_turn|start|"
    r"begin▁of▁sentence|end▁of▁sentence|end_of_sentence|START_OF_TURN_TOKEN|END_OF_TURN_TOKEN)[|｜]>"
    r"|<end_of_turn>|</?bos>|</?eos>|\[/SYSTEM_PROMPT\]|<BOS_TOKEN>",
    re.IGNORECASE,
)
_USER_NAMES = (
    "Human|User|Question|Q|Instruction|Prompter|Problem|Query"
    "|Frage|Benutzer|Nutzer|Utilisateur|Usuario|Usuário|Pregunta|Pergunta|用户|人类|问题|问"
)
_OTHER_NAMES = (
    "Assistant|AI|Bot|Chatbot|Answer|A|Response|GPT|ChatGPT|Output|Solution|Completion"
    "|Antwort|Assistent|Réponse|Asistente|Respuesta|Assistente|Resposta|助手|回答|答"
)
_OTHERS = frozenset(_OTHER_NAMES.lower().split("|"))
_NAMES = rf"{_USER_NAMES}|{_OTHER_NAMES}|System|Input|Context"
_SPEAKER = re.compile(
    rf"(?:(?:^|(?<=\n))[ \t]*(?P<hash>\#{{2,4}}[ ]?)?|(?P<inline>\#\#\#[ ]?))(?:\*\*)?"
    rf"(?P<name>{_NAMES}|{_NAMES.upper()}|{_NAMES.lower()})(?:\*\*)?[ ]?[:：](?:\*\*)?"
)
_VICUNA = re.compile(
    r"(?:^|\s|(?<=>))(?P<name>(?:GPT4 Correct )?(?:USER|ASSISTANT|User|Assistant)):(?= |$|\n)"
)
_CHOICE = re.compile(r"^\s*B\s*[:：]", re.MULTILINE)  # then `A:` is a choice, too
_TALKERS = ("assistant", "ai", "bot", "chatbot", "gpt", "chatgpt")  # who may speak first
_BLANK = re.compile(r"\n[ \t]*\n")
_ASKS = re.compile(
    r"\?\s*$|^(?:please|write|explain|parse|summari[sz]e|translate|what|how|why|which|convert|extract|find|give|can|"
    r"could|is|are|does|do|list|turn|make|rewrite|describe|classify|count|tell)\b",
    re.IGNORECASE,
)


class Transcript(NamedTuple):
    """What users said in a rendered conversation, and its system prompt."""

    turns: list[str]
    system: str | None


def read_transcript(text: str, *, is_prompt: bool) -> Transcript | str | None:
    """The users' side of a rendered conversation; None if the text is none, or why it can't be told: `transcript`.

    `is_prompt`: the text stands where prompts do, and not where whole conversations do.
    """
    marked = list(_MARK.finditer(text))
    if marked:
        return _from_markup(text, marked)
    return _from_speakers(text, is_prompt)


def has_markup(text: str) -> bool:
    """Whether a chat template's marks of turns are in the text."""
    return any(mark["d"] is None for mark in _MARK.finditer(text))


def _from_markup(text: str, marks: list[re.Match[str]]) -> Transcript | str | None:
    """Every text between two marks belongs to the first of them."""
    spoken: list[tuple[Role | None, str]] = []
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(text)], strict=True):
        words = _ENDS.sub("", text[mark.end() : end]).strip()
        role = _role(mark)
        if spoken and spoken[-1][0] == role == "user":  # [INST] <<SYS>> ... <</SYS>> the question
            words = f"{spoken.pop()[1]}\n{words}".strip()
        spoken.append((role, words))
    if any(role is None for role, _ in spoken):
        return "template"
    return _kept([(role, words) for role, words in spoken if words or role != "user"])


def _role(mark: re.Match[str]) -> Role | None:
    for number, (_, role) in enumerate(_MARKUP):
        if mark[f"m{number}"]:
            return role
    name = (mark["a"] or mark["b"] or mark["c"] or mark["d"]).lower().removesuffix("_token")
    if name in ("user", "human", "prompter"):
        return "user"
    if name in ("assistant", "bot", "model", "chatbot", "gpt"):
        return "assistant"
    if name in ("system", "developer"):
        return "system"
    return "tool" if name in ("tool", "observation", "ipython", "environment", "function") else None


def _from_speakers(text: str, is_prompt: bool) -> Transcript | str | None:
    body = _ENDS.sub("\n", text)
    marks = _speakers(body)
    if marks is None:
        vicuna = list(_VICUNA.finditer(body))
        if not _alternates([mark["name"] for mark in vicuna]) or vicuna[0]["name"].lower().endswith(
            "assistant"
        ):
            return _only_answered(body, is_prompt)
        marks = vicuna
    ends = [*(mark.start() for mark in marks[1:]), len(body)]
    spoken = [(_speaker(m["name"]), body[m.end() : end].strip()) for m, end in zip(marks, ends, strict=True)]
    preamble = body[: marks[0].start()].strip()
    heading = marks[0].groupdict().get("hash") or marks[0].groupdict().get("inline")
    if is_prompt and not heading and spoken[-1][0] == "assistant" and spoken[-1][1]:
        words = [words for _, words in spoken]
        by_line = all("\n" not in one for one in words[:-1]) and not _BLANK.search(
            body[: marks[-1].start()].strip()
        )
        rest = words[-1].partition("\n")[2]
        if by_line and rest.strip():  # "User: a\nAssistant: b\nWrite a parser of this format."
            return None if _ASKS.search(rest.strip().splitlines()[-1].strip()) else "transcript"
    if is_prompt and preamble and not heading and marks[0].re is not _VICUNA and marks[0]["name"].lower() not in (
        "human", "user",
    ):  # fmt: skip
        return None  # examples after an instruction: "Answer as shown. Q: ... A: ... Q: ..."
    kept = _kept(_joined(spoken))
    if isinstance(kept, Transcript) and preamble and kept.system is None and not heading:
        return kept._replace(system=preamble)
    return kept


def _speakers(body: str) -> list[re.Match[str]] | None:
    """The marks of speakers who take turns; None if they don't."""
    marks = _marks(body)
    roles = [_speaker(mark["name"]) for mark in marks if _speaker(mark["name"]) not in ("system", "tool")]
    if not body.lstrip().startswith(("#", "Human", "User", "Assistant")) and len(roles) < 2:
        return None
    if not roles or roles == ["user"]:
        return None
    if roles[0] == "assistant" and (
        body[: marks[0].start()].strip() or marks[0]["name"].lower() not in _TALKERS
    ):
        return None
    names = {mark["name"].lower() for mark in marks if _speaker(mark["name"]) in ("user", "assistant")}
    if len(names) > 2:
        return None  # fields of a form, such as a problem, a query and a solution
    return marks if all(a != b for a, b in pairwise(roles)) else None


def _marks(body: str) -> list[re.Match[str]]:
    choices = _CHOICE.search(body) is not None
    return [m for m in _SPEAKER.finditer(body) if not (choices and m["name"].upper() == "A")]


def _only_answered(body: str, is_prompt: bool) -> Transcript | None:
    """A text whose end is marked as the answer, its beginning unmarked: "How many? Answer: 3"."""
    marks = [mark for mark in _marks(body) if _speaker(mark["name"]) == "assistant"]
    if is_prompt or len(marks) != 1 or not body[: marks[0].start()].strip():
        return None
    return Transcript([body[: marks[0].start()].strip()], None)


def _alternates(names: list[str]) -> bool:
    return len(names) > 1 and all(a != b for a, b in pairwise(names))


def _speaker(name: str) -> Role:
    name = name.lower().removeprefix("gpt4 correct ")
    if name in _OTHERS:
        return "assistant"
    return "system" if name == "system" else "tool" if name in ("input", "context") else "user"


def _joined(spoken: list[tuple[Role, str]]) -> list[tuple[Role | None, str]]:
    """Alpaca's `### Input:` belongs to the instruction before it."""
    joined: list[tuple[Role | None, str]] = []
    for role, words in spoken:
        if role == "tool":
            if joined and joined[-1][0] == "user":
                joined[-1] = ("user", f"{joined[-1][1]}\n\n{words}".strip())
            continue
        joined.append((role, words))
    return joined


def _kept(spoken: list[tuple[Role | None, str]]) -> Transcript | str:
    turns = [words for role, words in spoken if role == "user"]
    systems = [words for role, words in spoken if role == "system" and words]
    if not turns or not turns[0]:
        return "no_user_turn"
    if "tool" in [role for role, _ in spoken]:
        return "template"  # tools' results can't be told from the text around them
    return Transcript(turns[: turns.index("")] if "" in turns else turns, "\n\n".join(systems) or None)
