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
from typing import Any, NamedTuple

from fledge.data.sources.messages import Role

_MARKUP: tuple[tuple[str, Role], ...] = (
    (r"<<SYS>>|\[SYSTEM_PROMPT\]", "system"),
    (r"\[/INST\]", "assistant"),
    (r"\[INST\]|<</SYS>>", "user"),
    (r"\[/?(?:AVAILABLE_TOOLS|TOOL_RESULTS)\]", "tool"),
    (r"<reserved_10[26]>|<用户>", "user"),
    (r"<reserved_10[37]>|(?-i:<AI>)", "assistant"),
)
# <|im_start|>user, <|start_header_id|>user<|end_header_id|>, <start_of_turn>user, <|user|>, <|start|>user<|message|>,
# [|user|], <extra_id_1>User, <|im_user|>user<|im_middle|>
_NAMED = (
    r"<\|(?:im_start|start|start_header_id|header_start|role_start)\|>\s*(?P<a>\w+)[^<\n]*"
    r"(?:<\|(?:channel)\|>\w+)?(?:<\|(?:end_header_id|header_end|message|role_end|im_sep)\|>)?"
    r"|<start_of_turn>\s*(?P<b>\w+)"
    r"|<[|｜](?P<c>user|assistant|system|human|bot|prompter|prompt|answer|tool|observation|USER_TOKEN|CHATBOT_TOKEN|SYSTEM_TOKEN)[|｜]>"
    r"|<(?P<d>human|bot|user|assistant)>:"
    r"|\[\|(?P<e>system|user|human|assistant|ai|tool)\|\]|<extra_id_\d>(?P<f>System|User|Assistant|Tool)\b"
    r"|<\|im_(?P<g>system|user|assistant|tool)\|>[^<\n]*<\|im_middle\|>|<\|turn>(?P<h>\w+)"
)
_MARK = re.compile(
    "|".join(f"(?P<m{n}>{mark})" for n, (mark, _) in enumerate(_MARKUP)) + "|" + _NAMED, re.IGNORECASE
)
# What ends a turn, or begins a text; BOS and EOS of many tokenizers.
_ENDS = re.compile(
    r"</?s>|<[|｜](?:im_end|end|eot_id|eot|eom_id|return|endoftext|end_of_text|begin_of_text|startoftext|end_of_turn|start|"
    r"begin▁of▁sentence|end▁of▁sentence|end_of_sentence|START_OF_TURN_TOKEN|END_OF_TURN_TOKEN)[|｜]>"
    r"|<end_of_turn>|</?bos>|</?eos>|\[/SYSTEM_PROMPT\]|<BOS_TOKEN>|\[\|endofturn\|\]|<turn\|>"
    r"|\[gMASK\]|<sop>|\[Round \d+\]",
    re.IGNORECASE,
)
_USER_NAMES = (
    "Human|User|Question|Q|Instruction|Instruct|Prompter|Prompt|Problem|Query|Task|Customer|Client|Student|Patient|Me"
    "|Frage|Benutzer|Nutzer|Utilisateur|Usuario|Usuário|Pregunta|Pergunta|Domanda|Utente|Vraag|Pytanie|Soru"
    "|Pertanyaan|Pengguna|Вопрос|Пользователь|用户|人类|问题|问|指令|質問|ユーザー|指示|질문|사용자|सवाल|प्रश्न|سؤال"
)
_OTHER_NAMES = (
    "Assistant|AI|Bot|Chatbot|Answer|A|Response|GPT|ChatGPT|Output|Solution|Completion|Reply|Agent|Tutor|Doctor|Claude"
    "|Antwort|Assistent|Réponse|Asistente|Respuesta|Assistente|Resposta|Risposta|Antwoord|Odpowiedź|Cevap"
    "|Jawaban|Asisten|Ответ|Ассистент|助手|回答|答|回复|応答|アシスタント|답변|응답|어시스턴트|जवाब|उत्तर|إجابة|جواب"
)
_OTHERS = frozenset(_OTHER_NAMES.lower().split("|"))
_NAMES = rf"{_USER_NAMES}|{_OTHER_NAMES}|System|Input|Context"
_NAME = rf"(?P<name>{_NAMES}|{_NAMES.upper()}|{_NAMES.lower()})"
# User: one, **User:** one, [10:31] User: one, 1. User: one, Q1: one, ### Instruction: one
_SPEAKER = re.compile(
    rf"(?:(?:^|(?<=\n))[ \t>]*(?:\[[\d:. /-]+\]\s*|\d+[.)]\s+)?(?P<hash>\#{{2,4}}[ ]?)?|(?P<inline>\#\#\#[ ]?))"
    rf"(?:\*\*|\[)?{_NAME}(?:[ ]?\d{{1,3}})?(?:\*\*|\])?[ ]?[:：](?:\*\*)?"
)
# Alone on a line, as headings are: ## User, **User**; [User] and <user> before their words; user, as decoders leave it.
_HEADING = re.compile(
    rf"(?:^|(?<=[\n>]))[ \t]*(?:(?P<hash>\#{{1,4}}[ ]|\*\*){_NAME}(?:\*\*)?[ \t]*(?=\n)"
    r"|(?P<bracket>[\[<])(?P<tagged>User|Human|Assistant|AI|Bot|System)[\]>](?!\()"
    r"|(?P<bare>user|assistant|system|model)[ \t]*(?=\n))|(?<=\S)(?P<glued>user|assistant)\n\n",
    re.IGNORECASE,
)
_LINES = re.compile(r"[\n<\[]")  # without these there are none
_TAG_ENDS = re.compile(r"</(?:user|human|assistant|ai|bot|system)>\s*", re.IGNORECASE)
# Anybody at the beginning of a line, who takes turns with a user.
_ANYBODY = re.compile(r"(?:^|(?<=\n))(?P<name>[^\W\d][\w'-]{0,20}(?: [\w'-]{1,20})?) ?[:：]")
_VICUNA = re.compile(
    r"(?:^|\s|(?<=>))(?P<name>(?:GPT4 Correct )?(?:USER|ASSISTANT|User|Assistant)):(?= |$|\n)"
)
# A list of messages as text: what could be parsed isn't read as a transcript.
_LISTED = re.compile(
    r"""\s*(?:\{\s*["'](?:messages|conversations|role)["']|\[\s*\{\s*["'](?:role|from|content|value)["'])\s*:"""
)
_CHOICE = re.compile(r"^\s*B\s*[:：]", re.MULTILINE)  # then `A:` is a choice, too
_TALKERS = ("assistant", "ai", "bot", "chatbot", "gpt", "chatgpt", "model")  # who may speak first
_FORMS = ("output", "completion", "reply", "agent", "tutor", "doctor")  # whose words may be part of a prompt
_BLANK = re.compile(r"\n[ \t]*\n")
_ASKS = re.compile(
    r"\?\s*$|^(?:please|write|explain|parse|summari[sz]e|translate|what|how|why|which|convert|extract|find|give|can|"
    r"could|is|are|does|do|list|turn|make|rewrite|describe|classify|count|tell)\b",
    re.IGNORECASE,
)


def read_transcript(text: str, *, is_prompt: bool) -> list[dict[str, Any]] | str | None:
    """The messages of a rendered conversation; None if the text is none, or why it can't be told: `transcript`.

    `is_prompt`: the text stands where prompts do, and not where whole conversations do.
    """
    if _LISTED.match(text):
        return "transcript"  # a list of messages that was cut or damaged on its way
    marked = list(_MARK.finditer(text))
    if marked:
        return _from_markup(text, marked, is_prompt)
    return _from_speakers(text, is_prompt)


def has_markup(text: str) -> bool:
    """Whether a chat template's marks of turns are in the text."""
    return any(mark["d"] is None for mark in _MARK.finditer(text))


def _from_markup(text: str, marks: list[re.Match[str]], is_prompt: bool) -> list[dict[str, Any]] | str:
    """Every text between two marks belongs to the first of them; before them, there may be a system prompt."""
    preamble = _ENDS.sub("", text[: marks[0].start()]).strip()
    if preamble and (is_prompt or _role(marks[0]) != "user"):
        return "template"  # a prompt about a template
    spoken: list[tuple[Role | None, str]] = [("system", preamble)]
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(text)], strict=True):
        words = _ENDS.sub("", text[mark.end() : end]).strip()
        role = _role(mark)
        if spoken and spoken[-1][0] == role == "user":  # [INST] <<SYS>> ... <</SYS>> the question
            words = f"{spoken.pop()[1]}\n{words}".strip()
        spoken.append((role, words))
    if any(role is None for role, _ in spoken):
        return "template"
    return _kept(spoken)


def _role(mark: re.Match[str]) -> Role | None:
    for number, (_, role) in enumerate(_MARKUP):
        if mark[f"m{number}"]:
            return role
    name = next(filter(None, map(mark.group, "abcdefgh"))).lower().removesuffix("_token")
    if name in ("user", "human", "prompter", "prompt"):
        return "user"
    if name in ("assistant", "bot", "model", "chatbot", "gpt", "ai", "answer"):
        return "assistant"
    if name in ("system", "developer"):
        return "system"
    return "tool" if name in ("tool", "observation", "ipython", "environment", "function") else None


class _Mark(NamedTuple):
    """Where somebody begins to speak."""

    start: int
    end: int
    role: Role
    name: str
    is_heading: bool = False


def _from_speakers(text: str, is_prompt: bool) -> list[dict[str, Any]] | str | None:
    body = _ENDS.sub("\n", text)
    kinds = _labels, _headings, _inline, _anybody
    found = ((kind, kind(body)) for kind in kinds)
    kind, marks = next(((kind, marks) for kind, marks in found if _take_turns(marks, body)), (_labels, []))
    if not marks:
        return _only_answered(body, is_prompt)
    ends = [*(mark.start for mark in marks[1:]), len(body)]
    words = [_TAG_ENDS.sub("", body[m.end : end]).strip() for m, end in zip(marks, ends, strict=True)]
    preamble = body[: marks[0].start].strip()
    heading, last = marks[0].is_heading, marks[-1]
    if is_prompt and preamble and not heading and marks[0].name not in ("human", "user"):
        return None  # examples after an instruction: "Answer as shown. Q: ... A: ... Q: ..."
    if is_prompt and last.role == "assistant" and words[-1]:
        rest = words[-1].partition("\n")[2].strip()
        is_form = not any("\n" in one for one in words[:-1]) and not _BLANK.search(body[: last.start].strip())
        if rest and is_form and not heading:  # "User: a\nAssistant: b\nWrite a parser of this format."
            return None if _ASKS.search(rest.splitlines()[-1].strip()) else "transcript"
        is_label = body[: last.end].rstrip(" *").endswith((":", "："))
        if last.name in _FORMS or not (is_label or last.name in _TALKERS) or kind is _anybody:
            return "transcript"  # an instruction with the form of its output, or with an example of it
    is_system = preamble and not heading and all(mark.role != "system" for mark in marks)
    spoken = [(mark.role, said) for mark, said in zip(marks, words, strict=True)]
    return _kept([("system", preamble if is_system else ""), *_joined(spoken)])


def _take_turns(marks: list[_Mark], body: str) -> bool:
    """Whether users and others speak in turns, two names in all."""
    spoken = [mark for mark in marks if mark.role not in ("system", "tool")]
    if not spoken or len({mark.name for mark in spoken}) > 2:
        return False  # fields of a form, such as a problem, a query and a solution
    first, begins = spoken[0], not body[: marks[0].start].strip()
    if first.role == "assistant" and not (begins and first.name in _TALKERS):
        return False
    if len(spoken) == 1:
        return first.name == "assistant"
    return all(a.role != b.role for a, b in pairwise(spoken))


def _labels(body: str) -> list[_Mark]:
    choices = _CHOICE.search(body) is not None
    found = [m for m in _SPEAKER.finditer(body) if not (choices and m["name"].upper() == "A")]
    marks = [_mark(m, m["name"], is_heading=bool(m["hash"] or m["inline"])) for m in found]
    if not marks or body[: marks[0].start].strip() or any(mark.role == "user" for mark in marks):
        return marks
    return [mark._replace(role="user") if mark.name == "input" else mark for mark in marks]


def _headings(body: str) -> list[_Mark]:
    found = list(_HEADING.finditer(body)) if _LINES.search(body) else []
    if not found or (found[0]["bare"] and body[: found[0].start()].strip()):
        return []
    return [_mark(m, m["name"] or m["tagged"] or m["bare"] or m["glued"], True) for m in found]


def _inline(body: str) -> list[_Mark]:
    return [_mark(m, m["name"].lower().removeprefix("gpt4 correct ")) for m in _VICUNA.finditer(body)]


def _anybody(body: str) -> list[_Mark]:
    """Two who take turns at the beginnings of lines, one of whom is known: User and Falcon."""
    found = list(_ANYBODY.finditer(body)) if body.count("\n") > 1 else []
    names = list(dict.fromkeys(m["name"].lower() for m in found))
    certain = [name for name in names if name in _TALKERS or name in ("user", "human")]
    if len(names) != 2 or len(certain) != 1 or len(found) < 3 or body[: found[0].start()].strip():
        return []
    other: Role = "user" if _speaker(certain[0]) == "assistant" else "assistant"
    marks = [_mark(m, m["name"]) for m in found]
    return [mark if mark.name == certain[0] else mark._replace(role=other) for mark in marks]


def _mark(match: re.Match[str], name: str, is_heading: bool = False) -> _Mark:
    return _Mark(match.start(), match.end(), _speaker(name), name.lower(), is_heading)


def _only_answered(body: str, is_prompt: bool) -> list[dict[str, Any]] | str | None:
    """A text whose end is marked as the answer, its beginning unmarked: "How many? Answer: 3"."""
    marks = [mark for mark in _labels(body) if mark.role == "assistant"]
    if is_prompt or len(marks) != 1 or not body[: marks[0].start].strip():
        return None
    if marks[0].name in _FORMS:
        return "transcript"  # a prompt with an example, as in tasks of programming
    return [{"role": "user", "content": body[: marks[0].start].strip()}]


def _speaker(name: str) -> Role:
    name = name.lower()
    if name in _OTHERS or name in _TALKERS:
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


def _kept(spoken: list[tuple[Role | None, str]]) -> list[dict[str, Any]] | str:
    """As messages; a user's empty turn is where the next one would begin."""
    if not any(role == "user" and words for role, words in spoken):
        return "no_user_turn"
    if "tool" in [role for role, _ in spoken]:
        return "template"  # tools' results can't be told from the text around them
    return [{"role": role, "content": words} for role, words in spoken if words]
