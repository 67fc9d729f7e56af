"""Conversations rendered into one text, and the users' turns in them. Answers are never returned.

    <s>[INST] one [/INST] an answer </s>           chat templates: ChatML, Llama, Mistral, Gemma, Phi, DeepSeek, ...
    ### Instruction:\\none\\n\\n### Response:\\nan answer      Alpaca, Guanaco
    Human: one\\n\\nAssistant: an answer                   speakers at the beginnings of lines
    ... USER: one ASSISTANT: an answer</s>              Vicuna

Speakers' names also occur in prompts about such texts, so they count only if they alternate. Where they do and the text
goes on in lines without a speaker, it depends on the column: `prompt` is then a prompt, `text` ends with an answer.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, NamedTuple

from fledge.data.sources.markup import ENDS, MARK, has_unknown_marks, marked_role
from fledge.data.sources.messages import Role

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
_NAMES = rf"{_USER_NAMES}|{_OTHER_NAMES}|System|系统|Input|Context"
_NAME = rf"(?P<name>{_NAMES}|{_NAMES.upper()}|{_NAMES.lower()})"
# User: one, **User:** one, [10:31] User: one, 1. User: one, Q1: one, ### Instruction: one
_SPEAKER = re.compile(
    rf"(?:(?:^|(?<=\n))[ \t>\U0001f300-\U0001faff\ufe0f]*(?:\[[\d:. /-]+\]\s*|\d+[.)]\s+)?(?P<hash>\#{{2,4}}[ ]?)?"
    r"|(?P<inline>\#\#\#[ ]?))"
    rf"(?:\*\*|\[)?{_NAME}(?:[ ]?\d{{1,3}})?(?:\*\*|\])?[ ]?[:：](?:\*\*)?"
)
# Alone on a line, as headings are: ## User, **User**, --- user ---; [User] and <user> before their words; user, as
# decoders leave it.
_HEADING = re.compile(
    rf"(?:^|(?<=[\n>]))[ \t]*(?:(?P<hash>\#{{1,4}}[ ]|\*\*){_NAME}(?:\*\*)?[ \t]*(?=\n)"
    r"|(?P<bracket>[\[<])(?P<tagged>User|Human|Assistant|AI|Bot|System)[\]>](?!\()"
    r"|[-=~_*+|]{2,8}[ ]?(?P<ruled>User|Human|Assistant|AI|Bot|Model|System)[ ]?[-=~_*+|]{0,8}[ \t]*(?=\n)"
    r"|(?P<bare>user|assistant|system|model)[ \t]*(?=\n))|(?<=\S)(?P<glued>user|assistant)\n\n",
    re.IGNORECASE,
)
_LINES = re.compile(r"[\n<\[]")  # without these there are none
_TAG_ENDS = re.compile(r"</(?:user|human|assistant|ai|bot|system)>\s*", re.IGNORECASE)
# A token before a speaker, as [Round 1] or <sep>; tags of HTML are no tokens.
_TOKEN = re.compile(
    r"(?P<token><(?!/?(?:[abiup]|b?q|h\d|br|em|li|t[dhr]|div|font|span|strong)>)[^<>\s]{1,30}>|\[[^\[\]\n]{1,30}\])\s*"
    r"(?=(?:\#{2,4} ?)?(?:system|user|human|assistant|ai|bot|用户|助手|系统) ?[:：](?!</))",
    re.IGNORECASE,
)
# Anybody at the beginning of a line, who takes turns with a user: Falcon: **Falcon:** (Falcon) <Falcon> # Falcon
_ANYBODY = re.compile(
    r"(?:^|(?<=\n))(?P<left>(?:[^\w\s]{1,4} ?)?)(?P<name>[^\W\d][\w'.-]{0,20}(?: (?!said)[\w'.-]{1,20})?)"
    r"(?P<right>(?: said)?(?:\*\*|[\])>])? ?[:：](?:\*\*)?(?!//)|[\])>](?=\s)|(?<=[\w*])(?:\*\*)?[ \t]*(?=\n))"
)
_FIRST_WORDS = 3  # minimum words of a question with one answer, where it could be a field: "User: alice"
_VICUNA = re.compile(
    r"(?:^|\s|(?<=>))(?P<name>(?:(?:GPT4|Code|Math)(?: Correct)? )?"
    r"(?:User|Assistant|Human|USER|ASSISTANT|GPT|HUMAN|AI|SYSTEM)):(?!:)(?:(?=\s|$)|(?<=USER:)|(?<=ASSISTANT:))"
)
# A list of messages as text: what could be parsed isn't read as a transcript.
_LISTED = re.compile(
    r"""\s*(?:\{\s*["'](?:messages|conversations|role)["']|\[\s*\{\s*["'](?:role|from|content|value)["'])\s*:"""
)
_TAGGED = re.compile(
    r"\s*<(question|query|prompt|instruction)>(?:(?!</?\1>).)+</\1>\s*<(?:answer|response|completion)>",
    re.DOTALL,
)
_CHOICE = re.compile(r"^\s*B\s*[:：]", re.MULTILINE)  # then `A:` is a choice, too
_USERS = ("user", "human")
_TALKERS = ("assistant", "ai", "bot", "chatbot", "gpt", "chatgpt", "model")  # who may speak first
_FORMS = ("output", "completion", "reply", "agent", "tutor", "doctor")  # whose words may be part of a prompt
_BLANK = re.compile(r"\n[ \t]*\n")
_ASKS = re.compile(
    r"\?\s*$|^(?:please|write|explain|parse|summari[sz]e|translate|what|how|why|which|convert|extract|find|give|can|"
    r"could|is|are|does|do|list|continue|complete|finish|proofread|correct|rate|turn|make|rewrite|describe|classify|count|tell)\b",
    re.IGNORECASE,
)


def read_transcript(text: str, *, is_prompt: bool) -> list[dict[str, Any]] | str | None:
    """The messages of a rendered conversation; None if the text is none, or the reason why it is unclear: `transcript`.

    `is_prompt`: the text stands where prompts do, and not where whole conversations do.
    """
    if _LISTED.match(text) or _TAGGED.match(text):
        return "transcript"  # a list of messages that was cut or damaged on its way, or a question with its answer
    marked = list(MARK.finditer(text))
    if marked:
        return _from_markup(text, marked, is_prompt)
    if has_unknown_marks(text):
        return "template"
    return _from_speakers(text, is_prompt)


def _from_markup(text: str, marks: list[re.Match[str]], is_prompt: bool) -> list[dict[str, Any]] | str:
    """Every text between two marks belongs to the first of them; before them, there may be a system prompt."""
    preamble = ENDS.sub("", text[: marks[0].start()]).strip()
    if preamble and (is_prompt or marked_role(marks[0]) != "user"):
        return "template"  # a prompt about a template
    spoken: list[tuple[Role | None, str]] = [("system", preamble)]
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(text)], strict=True):
        words = ENDS.sub("", text[mark.end() : end]).strip()
        role = marked_role(mark)
        if spoken and spoken[-1][0] == role == "user":  # [INST] <<SYS>> ... <</SYS>> the question
            words = f"{spoken.pop()[1]}\n{words}".strip()
        spoken.append((role, words))
    if any(role is None for role, _ in spoken):
        return "template"
    return _kept(spoken)


class _Mark(NamedTuple):
    """Start of a speaker's turn."""

    start: int
    end: int
    role: Role
    name: str
    is_heading: bool = False


def _from_speakers(text: str, is_prompt: bool) -> list[dict[str, Any]] | str | None:
    body = ENDS.sub("\n", text)
    for token in {found["token"] for found in _TOKEN.finditer(body)}:
        body = body.replace(token, "\n")
    kinds = _labels, _headings, _inline, _anybody
    found = ((kind, kind(body)) for kind in kinds)
    kind, marks = next(((kind, marks) for kind, marks in found if _take_turns(marks, body)), (_labels, []))
    if not marks:
        return _only_answered(body, is_prompt)
    ends = [*(mark.start for mark in marks[1:]), len(body)]
    words = [_TAG_ENDS.sub("", body[m.end : end]).strip() for m, end in zip(marks, ends, strict=True)]
    preamble = body[: marks[0].start].strip()
    heading, last = marks[0].is_heading, marks[-1]
    if is_prompt and preamble and not heading:
        is_task = (kind is _anybody or preamble.endswith((":", "："))) and _ASKS.search(preamble)
        if is_task or marks[0].name not in _USERS:
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
    """True if exactly two names, a user's and another, take turns."""
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
    return [_mark(m, m["name"] or m["tagged"] or m["ruled"] or m["bare"] or m["glued"], True) for m in found]


def _inline(body: str) -> list[_Mark]:
    marks = [_mark(m, m["name"].split()[-1]) for m in _VICUNA.finditer(body)]
    few = len(marks) == 2 and len(body[marks[0].end : marks[1].start].split()) < _FIRST_WORDS
    is_sentence = few and body[: marks[0].start].strip()[-1:].isalnum()  # about the names
    return [] if is_sentence else marks


def _anybody(body: str) -> list[_Mark]:
    """Two who take turns at the beginnings of lines, one of whom is known: User and Falcon."""
    found = [m for m in _ANYBODY.finditer(body) if m["right"].strip() or m["left"].startswith(("#", "**"))]
    style = next((_style(m) for m in found if m["name"].lower() in (*_USERS, *_TALKERS)), None)
    marks = [_mark(m, m["name"]) for m in found if _style(m) == style]
    names = list(dict.fromkeys(mark.name for mark in marks if mark.role != "system"))
    pair = names[:2]
    if len(pair) < 2 or not {*pair} & {*_USERS, *_TALKERS} or pair[0] == "model":
        return []
    if body[: marks[0].start].strip() and pair[0] not in _USERS:
        return []
    if pair[0] in _USERS or pair[1] in _TALKERS:
        roles: dict[str, Role] = {pair[0]: "user", pair[1]: "assistant"}
    else:
        roles = {pair[0]: "assistant", pair[1]: "user"}
    marks = [
        mark._replace(role=roles.get(mark.name, mark.role))
        for mark in marks
        if mark.name in pair or mark.role == "system"
    ]
    first, second, *later = [mark for mark in marks if mark.role != "system"]
    words = body[first.end : second.start].split()
    if not later and (len(names) > 2 or len(words) < _FIRST_WORDS or first.role != "user"):
        return []  # fields of a form
    return marks


def _style(match: re.Match[str]) -> tuple[str, str]:
    return match["left"].strip(), match["right"].strip()


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
    return "system" if name in ("system", "系统") else "tool" if name in ("input", "context") else "user"


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
    """Convert turns to messages; a user's empty turn is where the next one would begin."""
    if not any(role == "user" and words for role, words in spoken):
        return "no_user_turn"
    if "tool" in [role for role, _ in spoken]:
        return "template"  # tools' results can't be separated from the text around them
    return [{"role": role, "content": words} for role, words in spoken if words]
